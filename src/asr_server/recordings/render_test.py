"""Rendering transcripts."""

import json
from dataclasses import replace

import pytest

from asr_server.core.transcript import RepairReason, Segment, TimeSource, Transcript, Word
from asr_server.recordings import render as rendering
from asr_server.recordings.render import render
from asr_server.recordings.requests import ResponseFormat, TranscriptionRequest
from asr_server.subtitle.cues import CueConfig

WORDS = tuple(
    Word(text, start, end, TimeSource.ESTIMATED, confidence)
    for text, start, end, confidence in (
        ("你", 250, 800, None),
        ("好", 800, 1500, None),
        ("今", 2000, 2500, 0.5),
        ("天", 2500, 3250, 0.75),
    )
)
SEGMENTS = (
    Segment(250, 1500, "你好", "Chinese", (1, 2), -0.25, 0.01, words=WORDS[:2]),
    Segment(2000, 3250, "今天", "Chinese", (3,), -0.5, 0.02, words=WORDS[2:]),
)
SPEECH = Transcript("你好今天", "Chinese", 3420, SEGMENTS)


def _json(transcript, response_format, **options):
    result = _render(transcript, response_format, **options)
    assert result.media_type == "application/json"
    return json.loads(result.content)


def _render(transcript, response_format, **options):
    request = TranscriptionRequest(response_format=response_format, **options)
    return render(transcript, request, CueConfig())


@pytest.mark.parametrize(("duration_ms", "seconds"), [(100, 1), (8_000, 8), (8_001, 9), (8_470, 9)])
def test_seconds_of_usage_are_rounded_up(duration_ms, seconds):
    """An integer, as in OpenAI's answers: 8.47 s count as 9."""
    found = rendering.usage(replace(SPEECH, duration_ms=duration_ms))
    assert json.dumps(found) == f'{{"type": "duration", "seconds": {seconds}}}'


@pytest.mark.parametrize(("language", "listed"), [("English", ["chinese", "english"]), ("Chinese", [None, None])])
def test_a_segment_says_why_it_was_heard_again_and_its_language_where_several_are_spoken(language, listed):
    """The text is that of the second answer. Where there is one language, the whole says enough."""
    segments = replace(SEGMENTS[0], repaired=RepairReason.LOOP), replace(SEGMENTS[1], language=language)
    found = _json(replace(SPEECH, segments=segments), ResponseFormat.VERBOSE_JSON)["segments"]
    assert [one.get("language") for one in found] == listed
    assert [(one.get("repaired"), one["complete"]) for one in found] == [("loop", True), (None, True)]


def _segment(text, start, source):
    words = tuple(Word(w, start + 300 * i, start + 300 * (i + 1), source) for i, w in enumerate(text.split()))
    return Segment(start, start + 300 * len(words), text, "English", (), 0.0, 0.0, words=words)


def _transcript(segments):
    return Transcript("", "English", segments[-1].end_ms, tuple(segments))


def test_the_last_cue_ends_with_the_recording():
    """A short word at the very end is not shown on where there is no picture any more."""
    (cue,) = rendering.cues(_transcript([_segment("stop", 100, TimeSource.ALIGNED)]), CueConfig())
    assert (cue.start_ms, cue.end_ms) == (100, 400)


def test_the_source_names_what_the_times_are():
    aligned, estimated = _segment("a b", 0, TimeSource.ALIGNED), _segment("c", 900, TimeSource.ESTIMATED)
    assert rendering.time_source([aligned]) == "aligned"
    assert rendering.time_source([estimated]) == "estimated"
    assert rendering.time_source([aligned, estimated]) == "mixed"
    assert rendering.time_source([]) == "estimated"
