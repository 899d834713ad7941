"""`POST /v1/audio/alignments`: the words of a text with times, on the fake engine."""

import io
import json
import re
from itertools import pairwise

import numpy as np
import pytest

from asr_server.client.files import AlignmentFormat, AlignmentRequest, AsyncFileClient, FileClient
from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings
from E2Etest.drive.process import refusal

PAUSE = np.zeros(3 * 16_000, np.int16)


@pytest.fixture(scope="module")
def talk():
    """The bundled recording five times, in spans of their own: 35 s."""
    return recordings.wav(np.concatenate([part for _ in range(5) for part in (recordings.samples(), PAUSE)]))


def _align(server, audio, text, **fields):
    """Return the answer. `text`: a field, or the bytes of a file."""
    files = {"file": ("x.wav", audio)}
    if isinstance(text, bytes):
        files["text"] = ("x.txt", text)
    elif text is not None:
        fields["text"] = text
    return server.client.post("/v1/audio/alignments", files=files, data=fields)


def _times(words):
    return [at for word in words if word["start"] is not None for at in (word["start"], word["end"])]


def test_every_word_has_its_time_in_its_span(server, talk, sample):
    """Times rise and lie inside the recording, words keep their spelling, and no word lies in a pause."""
    text = " ".join([sample[1].capitalize() + "!"] * 5)
    answer = _align(server, talk, text)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-subtitle-timing"] == "aligned"
    body = answer.json()
    assert " ".join(word["word"] for word in body["words"]) == text
    assert {word["score"] for word in body["words"]} == {1.0}
    times = _times(body["words"])
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= body["duration"] == pytest.approx(35, abs=0.1)
    count = len(sample[1].split())
    for reading in range(5):
        own = _times(body["words"][count * reading : count * (reading + 1)])
        assert 7 * reading - 0.3 <= own[0] <= own[-1] <= 7 * reading + 4.4
    assert (body["language"], body["language_code"], body["score"]) == ("english", "en", 1.0)


def test_a_passage_that_is_not_read_has_no_times(server, talk, sample):
    """At the beginning, between two readings and at the end. The readings have those that they have without it."""
    left_out = "once upon a time there was nothing at all to be aligned"
    plain = _align(server, talk, " ".join([sample[1]] * 5)).json()["words"]
    parts = [left_out, *[sample[1]] * 2, left_out, *[sample[1]] * 3, left_out]
    words = _align(server, talk, " ".join(parts)).json()["words"]
    assert [word for word in words if word["start"] is not None] == plain
    unheard = [word for word in words if word["start"] is None]
    assert " ".join(word["word"] for word in unheard) == " ".join([left_out] * 3)
    assert {(word["end"], word["score"], word["source"]) for word in unheard} == {(None, 0.0, None)}


def test_speech_that_is_not_in_the_text_takes_no_word_of_it(server, talk, sample):
    """The words are where they were said, although the rest of the speech is not in the text."""
    count = len(sample[1].split())
    plain = _align(server, talk, " ".join([sample[1]] * 5)).json()["words"]
    whole = _align(server, talk, sample[1]).json()["words"]
    assert whole in [plain[count * reading : count * (reading + 1)] for reading in range(5)]
    rest = _align(server, talk, "kitchen lights").json()["words"]
    assert rest in [plain[count * reading + 4 : count * reading + 6] for reading in range(5)]


def test_lines_are_segments_and_no_cue_has_words_of_two(server, talk, sample):
    """However short they are; a line that was not heard has no cue."""
    lines = [
        "Hello,",
        "turn on the kitchen lights",
        "",
        "nothing like this is ever said here",
        "and play music please.",
    ]
    text = "\r\n".join(lines)
    body = _align(server, talk, text).json()
    assert [segment["text"] for segment in body["segments"]] == [line for line in lines if line]
    unheard = body["segments"][2]
    assert (unheard["start"], unheard["end"], unheard["score"]) == (None, None, 0.0)
    cues = _align(server, talk, text, response_format="srt").text
    assert re.findall(r"--> .*\n(.*)\n", cues) == [lines[0], lines[1], lines[4]]
    vtt = _align(server, talk, text, response_format="vtt")
    assert vtt.text.startswith("WEBVTT")
    assert vtt.headers["content-disposition"] == 'attachment; filename="alignment.vtt"'


def test_a_table_and_a_text_grid_have_the_words(server, talk, sample):
    """Both have the times of json. A word that was not heard has no times in the table, and is not in the grid."""
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


@pytest.mark.parametrize("text", ["guten Morgen liebe Leute, wie geht es euch heute?", "早上好，大家好"])
def test_another_text_has_low_scores(server, talk, text):
    """A text in another language or script is answered too, and the answer names the language that was heard."""
    body = _align(server, talk, text).json()
    assert len(body["words"]) == (9 if "guten" in text else 6)
    assert body["score"] < 0.4
    assert body["language_code"] == "en"


def test_silence_has_no_words(server):
    """The answer says so for each of them."""
    body = _align(server, recordings.wav(PAUSE), "Good morning.").json()
    assert (body["language"], body["score"]) == ("auto", 0.0)
    assert [(word["word"], word["start"], word["score"]) for word in body["words"]] == [
        ("Good", None, 0.0),
        ("morning.", None, 0.0),
    ]
    assert _align(server, recordings.wav(PAUSE), "Good morning.", response_format="srt").text == ""


def test_a_text_may_be_longer_than_what_is_said(server, sample):
    """A file, with a mark of its encoding, and the recording's words in the middle of it."""
    page = "Ça, c'est le reste du livre. " * 15
    words = _align(server, sample[0], f"\ufeff{page}{sample[1]}\n{page}".encode()).json()["words"]
    assert " ".join(word["word"] for word in words if word["score"] > 0.9) == sample[1]
    assert len(words) > 150


def test_a_text_that_is_far_longer_than_the_recording_is_refused(server, sample):
    """Nobody says 40 characters a second, and matching a book takes as long as hearing a minute."""
    refused = _align(server, sample[0], ("the quick brown fox " * 14_000).encode())
    assert refusal(refused)[:2] == (400, "string_above_max_length")
    assert "too long for this recording" in refused.text
    book = _align(server, sample[0], "Ça, c'est le reste du livre. " * 10_000)
    assert refusal(book)[1] == "malformed_body"


@pytest.mark.parametrize(
    ("text", "fields", "code", "param"),
    [
        (None, {}, "missing_required_parameter", "text"),
        (" \n", {}, "missing_required_parameter", "text"),
        (b"", {}, "missing_required_parameter", "text"),
        ("— ♪ …", {}, "invalid_value", "text"),
        ("Gr\u00fc\u00df Gott".encode("latin-1"), {}, "invalid_value", "text"),
        (b"a " * 150_001, {}, "string_above_max_length", "text"),
        (b"a" * 1_300_000, {}, "string_above_max_length", "text"),
        ("hello", {"response_format": "odt"}, "invalid_value", "response_format"),
        ("hello", {"language": "klingon"}, "unsupported_language", "language"),
        ("hello", {"model": "gone"}, "model_not_found", "model"),
    ],
    ids=["none", "blank", "empty", "signs", "latin-1", "long", "large", "format", "language", "model"],
)
def test_what_is_wrong_is_said(server, sample, text, fields, code, param):
    """The error has a code and the name of the field, and comes before anything is decoded."""
    assert refusal(_align(server, sample[0], text, **fields)) == (404 if param == "model" else 400, code, param)


def test_times_are_estimated_where_no_aligner_helps(start, sample):
    """Each word says so, and the header."""
    with start(script=FakeScript(align_fails=True)) as server:
        answer = _align(server, sample[0], sample[1])
        assert {word["source"] for word in answer.json()["words"]} == {"estimated"}
        assert answer.headers["x-subtitle-timing"] == "estimated"


async def test_the_clients_have_the_words(server, sample):
    """Blocking and not, in the language that is asked for."""
    text = "\n".join([sample[1], "and this is not said. " * 40])
    asked = AlignmentRequest(text=text, language="German", answer=AlignmentFormat.SRT)
    with FileClient(server.base) as client:
        words = client.align(io.BytesIO(sample[0]), asked)
        assert client.process(io.BytesIO(sample[0]), asked).content.startswith(b"1\n00:00:00")
        content = client.process(io.BytesIO(sample[0]), AlignmentRequest(text="hello", language="German")).content
    assert json.loads(content)["language_code"] == "de"
    assert [word.text for word in words] == text.split()
    listed = _align(server, sample[0], text.encode()).json()["words"]
    assert [(word.score, word.time is None) for word in words] == [(w["score"], w["start"] is None) for w in listed]
    assert [(word.time.start_ms, word.time.end_ms, word.time.source.value) for word in words[:10]] == [
        (round(1000 * word["start"]), round(1000 * word["end"]), word["source"]) for word in listed[:10]
    ]
    async with AsyncFileClient(server.base) as client:
        assert await client.align(io.BytesIO(sample[0]), asked) == words
