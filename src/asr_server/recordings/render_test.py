"""Rendering transcripts."""

import json
from dataclasses import replace

import pytest

from asr_server.core.transcript import RepairReason, Segment, TimeSource, Transcript, Word
from asr_server.recordings import render as rendering
from asr_server.recordings.render import render
from asr_server.recordings.requests import ResponseFormat, SubtitleRequest, TranscriptionRequest
from asr_server.subtitle.cues import CueConfig, SpeakerStyle, parse_srt

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


@pytest.mark.parametrize(
    ("response_format", "asked"),
    [
        (ResponseFormat.JSON, {"return_timestamps": True}),
        (ResponseFormat.VERBOSE_JSON, {"timestamp_granularities": ("word",)}),
    ],
)
def test_words_come_with_times_and_where_these_are_from(response_format, asked):
    """Only where they are asked for, in seconds; verbose_json may leave the segments out."""
    assert "words" not in _json(SPEECH, response_format)
    body = _json(SPEECH, response_format, **asked)
    assert [w["word"] for w in body["words"]] == list("你好今天")
    assert body["words"][1] == {"word": "好", "start": 0.8, "end": 1.5, "source": "estimated"}
    assert body["words"][3]["confidence"] == 0.75
    assert "segments" not in body


def test_cues_of_verbose_json_are_those_of_srt():
    """With the limits of the server, and the line breaks."""
    listed = _json(SPEECH, ResponseFormat.VERBOSE_JSON, timestamp_granularities=("cue",))["cues"]
    shown = [(cue.start_ms / 1000, cue.end_ms / 1000, cue.text) for cue in parse_srt(_srt(SPEECH))]
    assert [(cue["start"], cue["end"], cue["text"]) for cue in listed] == shown
    assert len(shown) == 2
    assert "cues" not in _json(SPEECH, ResponseFormat.VERBOSE_JSON)


def _srt(transcript):
    return _render(transcript, ResponseFormat.SRT).content.decode()


def _segment(text, start, source):
    words = tuple(Word(w, start + 300 * i, start + 300 * (i + 1), source) for i, w in enumerate(text.split()))
    return Segment(start, start + 300 * len(words), text, "English", (), 0.0, 0.0, words=words)


def _transcript(segments):
    return Transcript("", "English", segments[-1].end_ms, tuple(segments))


def test_cues_have_the_layout_of_the_request():
    """A request without a layout has the default rules."""
    assert rendering.cue_config(TranscriptionRequest()) == CueConfig()
    request = SubtitleRequest(max_line_chars=32, max_lines=1, speaker_style=SpeakerStyle.DASH)
    expected = CueConfig(max_line_columns=32, max_lines=1, speaker_style=SpeakerStyle.DASH)
    assert rendering.cue_config(request) == expected


def test_the_last_cue_ends_with_the_recording():
    """A short word at the very end is not shown on where there is no picture any more."""
    (cue,) = rendering.cues(_transcript([_segment("stop", 100, TimeSource.ALIGNED)]), CueConfig())
    assert (cue.start_ms, cue.end_ms) == (100, 400)


def test_the_source_names_what_the_times_are():
    """Aligned, estimated, or mixed as soon as one word differs."""
    aligned, estimated = _segment("a b", 0, TimeSource.ALIGNED), _segment("c", 900, TimeSource.ESTIMATED)
    assert rendering.time_source([aligned]) == "aligned"
    assert rendering.time_source([estimated]) == "estimated"
    assert rendering.time_source([aligned, estimated]) == "mixed"
    assert rendering.time_source([]) == "estimated"
