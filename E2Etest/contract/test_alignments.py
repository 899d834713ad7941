"""Alignments as tables and TextGrids, of long texts, and by the clients of the package."""

import io
import re
from itertools import pairwise

import pytest

from asr_server.client.files import AlignmentFormat, AlignmentRequest, AsyncFileClient, FileClient
from E2Etest.contract import sounds


def _align(server, audio, text, **fields):
    files = {"file": ("x.wav", audio), "text": ("x.txt", text.encode())}
    return server.client.post("/v1/audio/alignments", files=files, data=fields)


def test_a_table_and_a_text_grid_have_the_words(server, sample):
    """Both have the times of json. A word that was not heard has no times in the table, and is not in the grid."""
    talk = sounds.content(["speech", 31])
    text = f"{sample[1]}\n" + "six words that nobody ever says"
    words = _align(server, talk, text).json()["words"]
    head, *rows = _align(server, talk, text, response_format="tsv").text.splitlines()
    assert head == "start\tend\tscore\ttext"
    assert rows == [
        "\t".join(["" if word[at] is None else str(round(1000 * word[at])) for at in ("start", "end")])
        + f"\t{word['score']:g}\t{word['word']}"
        for word in words
    ]
    grid = _align(server, talk, text, response_format="textgrid").text
    tiers = grid.split('"IntervalTier"\n')[1:]
    assert [tier.splitlines()[0] for tier in tiers] == ['"words"', '"lines"']
    for tier, spoken in zip(tiers, (sample[1].split(), [sample[1]]), strict=True):
        found = re.findall(r'(.*)\n(.*)\n"(.*)"\n', tier.split("\n", 4)[4])
        assert [label for *_, label in found if label] == spoken
        ends = [(float(start), float(end)) for start, end, _ in found]
        assert (ends[0][0], ends[-1][1]) == (0.0, pytest.approx(35, abs=0.1))
        assert all(before[1] == after[0] for before, after in pairwise(ends))


def test_a_text_may_be_longer_than_what_is_said(server, sample):
    """A file, with a mark of its encoding, and the recording's words in the middle of it."""
    page = "Ça, c'est le reste du livre. " * 15
    words = _align(server, sample[0], f"\ufeff{page}{sample[1]}\n{page}").json()["words"]
    assert " ".join(word["word"] for word in words if word["score"] > 0.9) == sample[1]
    assert len(words) > 150


def test_a_text_too_large_for_an_aligner_gets_estimated_times(server, sample):
    """Marks are no letters, so all words are found, but each may have thousands: the memory of an aligner's pass grows
    with them."""
    audio, text = sample
    assert {word["source"] for word in _align(server, audio, text).json()["words"]} == {"aligned"}
    words = _align(server, audio, text + 900 * "\u0301").json()["words"]
    assert [(word["score"], word["source"]) for word in words] == [(1.0, "estimated")] * len(text.split())


async def test_the_clients_have_the_words(server, sample):
    """Blocking and not, whatever the format of the request."""
    text = f"{sample[1]}\nand this is not said."
    asked = AlignmentRequest(text=text, language="English", answer=AlignmentFormat.SRT)
    with FileClient(server.base) as client:
        words = client.align(io.BytesIO(sample[0]), asked)
        assert client.process(io.BytesIO(sample[0]), asked).content.startswith(b"1\n00:00:00")
    listed = _align(server, sample[0], text, language="English").json()["words"]
    assert [(one.text, one.score) for one in words] == [(one["word"], one["score"]) for one in listed]
    for one, found in zip(words, listed, strict=True):
        times = one.time and [one.time.start_ms / 1000, one.time.end_ms / 1000, one.time.source.value]
        assert times == (found["end"] and [found[name] for name in ("start", "end", "source")])
    async with AsyncFileClient(server.base) as client:
        assert await client.align(io.BytesIO(sample[0]), asked) == words
