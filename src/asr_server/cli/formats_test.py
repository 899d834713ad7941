"""Formats: names, files, and several of them from one answer of the server."""

import argparse
from dataclasses import replace

import pytest

from asr_server.cli import formats
from asr_server.cli.formats import CUE_FORMATS, Format
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.recordings.render import render
from asr_server.recordings.requests import TranscriptionRequest

TEXT = "Turn on the lights"
WORDS = tuple(Word(text, 1000 * i, 1000 * i + 700, TimeSource.ALIGNED) for i, text in enumerate(TEXT.split()))
SPEECH = Transcript(TEXT, "English", 4_250, (Segment(0, 3_700, TEXT, "English", (1,), -0.1, 0.0, words=WORDS),))
DIALOGUE = replace(
    SPEECH,
    segments=tuple(
        replace(SPEECH.segments[0], text=text, words=words, speaker=name, start_ms=words[0].start_ms)
        for name, text, words in (("A", "Turn on", WORDS[:2]), ("Smith, Ann", "the lights", WORDS[2:]))
    ),
)
# Without speakers there is no diarized_json, and with them json shows none of them. Documents are made of paragraphs.
PLAIN_FORMATS = [one for one in Format if one is not Format.DIARIZED_JSON and not one.is_document]
SPEAKER_FORMATS = [one for one in Format if one is not Format.JSON and not one.is_document]


def _answer(request, transcript=SPEECH):
    return render(transcript, request).content.decode()


def _chosen(given=None, output=None, allowed=formats.FORMATS):
    return formats.chosen(argparse.Namespace(format=given, output=output), allowed)


@pytest.mark.parametrize("others", [[Format.TEXT], [Format.SRT], [Format.TEXT, Format.SRT], [Format.VTT, Format.SRT]])
@pytest.mark.parametrize(
    ("one", "transcript"), [*((one, SPEECH) for one in PLAIN_FORMATS), *((one, DIALOGUE) for one in SPEAKER_FORMATS)]
)
def test_a_format_is_the_same_alone_and_among_others(one, transcript, others):
    """A single answer is enough, and no byte differs from the server's own file."""
    wanted = list(dict.fromkeys([one, *others]))
    request = TranscriptionRequest(**formats.answer_options(wanted, speakers=transcript is DIALOGUE))
    made = formats.convert(_answer(request, transcript), request.response_format, wanted)
    alone = _answer(TranscriptionRequest(response_format=one), transcript)
    assert ("Smith, Ann" in alone) is (transcript is DIALOGUE)
    assert made[one] == (alone if alone.endswith("\n") else f"{alone}\n")
    assert set(made) == set(wanted)


def test_names_may_be_repeated_listed_and_short():
    """`txt` is text; `all` is what Whisper's command writes, whose json has the segments."""
    assert formats.parse("SRT,txt") == [Format.SRT, Format.TEXT]
    assert [formats.suffix(one) for one in formats.parse("all")] == [".txt", ".vtt", ".srt", ".json"]
    assert _chosen([Format.SRT, Format.TEXT, Format.SRT]) == [Format.SRT, Format.TEXT]


@pytest.mark.parametrize(
    ("given", "output", "allowed", "wanted"),
    [
        (None, "talk.srt", formats.FORMATS, Format.SRT),
        (None, "a/talk.TXT", formats.FORMATS, Format.TEXT),
        (None, "talk.json", formats.FORMATS, Format.JSON),
        (None, "talk.md", formats.FORMATS, Format.MARKDOWN),
        (None, "talk.rtf", formats.FORMATS, Format.TEXT),
        (None, "-", CUE_FORMATS, Format.SRT),
        (None, None, CUE_FORMATS, Format.SRT),
        ([Format.VTT], "talk.srt", formats.FORMATS, Format.VTT),
    ],
)
def test_the_name_of_the_file_is_enough(given, output, allowed, wanted):
    """A name without a known ending means the first format. A format that is asked for wins over the name."""
    assert _chosen(given, output, allowed) == [wanted]
