"""Formats: names, files, and several of them from one answer of the server."""

import argparse
import json
from dataclasses import replace

import pytest

from asr_server.cli import formats
from asr_server.cli.failure import UsageError
from asr_server.cli.formats import CUE_FORMATS, Format
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.recordings.render import render
from asr_server.recordings.requests import TranscriptionRequest
from asr_server.subtitle.cues import CueConfig

WORDS = tuple(
    Word(text, 1000 * i, 1000 * i + 700, TimeSource.ALIGNED)
    for i, text in enumerate(["Turn", "on", "the", "lights", "."][:4])
)
SPEECH = Transcript(
    "Turn on the lights",
    "English",
    4_250,
    (Segment(0, 3_700, "Turn on the lights", "English", (1,), -0.1, 0.0, words=WORDS),),
)
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
    return render(transcript, request, CueConfig()).content.decode()


def _request(wanted, **how):
    return TranscriptionRequest(**formats.answer_options(wanted, **how))


def _chosen(given=None, output=None, allowed=formats.FORMATS):
    return formats.chosen(argparse.Namespace(format=given, output=output), allowed)


@pytest.mark.parametrize("others", [[Format.TEXT], [Format.SRT], [Format.TEXT, Format.SRT], [Format.VTT, Format.SRT]])
@pytest.mark.parametrize("one", PLAIN_FORMATS)
def test_a_format_is_the_same_alone_and_among_others(one, others):
    """A single answer is enough, and no byte differs from the server's own file."""
    wanted = list(dict.fromkeys([one, *others]))
    request = _request(wanted)
    made = formats.convert(_answer(request), request.response_format, wanted)
    alone = _answer(TranscriptionRequest(response_format=one))
    assert made[one] == (alone if alone.endswith("\n") else f"{alone}\n")
    assert set(made) == set(wanted)


@pytest.mark.parametrize("others", [[Format.TEXT], [Format.SRT], [Format.TEXT, Format.SRT], [Format.VTT, Format.SRT]])
@pytest.mark.parametrize("one", SPEAKER_FORMATS)
def test_a_format_with_speakers_is_the_same_alone_and_among_others(one, others):
    """Names are where the server has them."""
    wanted = list(dict.fromkeys([one, *others]))
    request = _request(wanted, speakers=True)
    made = formats.convert(_answer(request, DIALOGUE), request.response_format, wanted)
    alone = _answer(TranscriptionRequest(response_format=one), DIALOGUE)
    assert "Smith, Ann" in alone
    assert made[one] == (alone if alone.endswith("\n") else f"{alone}\n")


@pytest.mark.parametrize("one", CUE_FORMATS)
def test_formats_of_cues_have_the_same_cues(one):
    """The cues are those of srt."""
    request = _request([one])
    assert "Turn on the lights" in formats.convert(_answer(request), request.response_format, [one])[one]


def test_names_may_be_repeated_listed_and_short():
    """`txt` is text; `all` is what Whisper's command writes, whose json has the segments."""
    assert formats.parse("SRT,txt") == [Format.SRT, Format.TEXT]
    assert [formats.suffix(one) for one in formats.parse("all")] == [".txt", ".vtt", ".srt", ".json"]
    assert _chosen([Format.SRT, Format.TEXT, Format.SRT]) == [Format.SRT, Format.TEXT]


@pytest.mark.parametrize(
    ("output", "allowed", "wanted"),
    [
        ("talk.srt", formats.FORMATS, Format.SRT),
        ("a/talk.TXT", formats.FORMATS, Format.TEXT),
        ("talk.json", formats.FORMATS, Format.JSON),
        ("talk.md", formats.FORMATS, Format.MARKDOWN),
        ("talk.rtf", formats.FORMATS, Format.TEXT),
        ("-", CUE_FORMATS, Format.SRT),
        (None, CUE_FORMATS, Format.SRT),
    ],
)
def test_the_name_of_the_file_is_enough(output, allowed, wanted):
    """A name without a known ending means the first format."""
    assert _chosen(output=output, allowed=allowed) == [wanted]


def test_an_explicit_format_wins_over_the_name():
    """The file gets what was asked for."""
    assert _chosen([Format.VTT], "talk.srt") == [Format.VTT]


def test_two_formats_are_never_one_file():
    """All kinds of JSON have the same ending."""
    with pytest.raises(UsageError, match="same file"):
        _chosen([Format.JSON, Format.VERBOSE_JSON])
    with pytest.raises(UsageError, match="same file"):
        _chosen([Format.DIARIZED_JSON, Format.SRT, Format.VERBOSE_JSON])
    suffixes = [formats.suffix(one) for one in Format if one not in (Format.VERBOSE_JSON, Format.DIARIZED_JSON)]
    assert len(set(suffixes)) == len(suffixes)


def test_cues_are_not_left_in_the_json_that_was_asked_for():
    """The cues were requested for the other file."""
    wanted = [Format.VERBOSE_JSON, Format.SRT]
    request = _request(wanted)
    assert "cues" in _answer(request)
    assert "cues" not in json.loads(
        formats.convert(_answer(request), request.response_format, wanted)[Format.VERBOSE_JSON]
    )
