"""Rendering transcripts."""

import json
from dataclasses import replace

import pytest

from asr_server.core.transcript import RepairReason, Segment, TimeSource, Transcript, Word
from asr_server.recordings import render as rendering
from asr_server.recordings.requests import ResponseFormat, TranscriptionRequest
from asr_server.subtitle.cues import CueConfig


def _segment(text, start, source):
    words = tuple(Word(w, start + 300 * i, start + 300 * (i + 1), source) for i, w in enumerate(text.split()))
    return Segment(start, start + 300 * len(words), text, "English", (), 0.0, 0.0, words=words)


ALIGNED, ESTIMATED = _segment("a b", 0, TimeSource.ALIGNED), _segment("c", 900, TimeSource.ESTIMATED)


@pytest.mark.parametrize(("language", "listed"), [("Chinese", ["english", "chinese"]), ("English", [None, None])])
def test_a_segment_says_why_it_was_heard_again_and_its_language_where_several_are_spoken(language, listed):
    """The text is that of the second answer. Where there is one language, the whole says enough."""
    segments = replace(ALIGNED, repaired=RepairReason.LOOP), replace(ESTIMATED, language=language)
    wanted = TranscriptionRequest(response_format=ResponseFormat.VERBOSE_JSON)
    transcript = Transcript("a b c", "English", 1_200, segments)
    found = json.loads(rendering.render(transcript, wanted).content)["segments"]
    assert [one.get("language") for one in found] == listed
    assert [(one.get("repaired"), one["complete"]) for one in found] == [("loop", True), (None, True)]


def test_the_last_cue_ends_with_the_recording():
    """A short word at the very end is not shown on where there is no picture any more."""
    segment = _segment("stop", 100, TimeSource.ALIGNED)
    (cue,) = rendering.cues(Transcript("", "English", segment.end_ms, (segment,)), CueConfig())
    assert (cue.start_ms, cue.end_ms) == (100, 400)


def test_the_source_names_what_the_times_are():
    found = [rendering.time_source(segments) for segments in ([ALIGNED], [ESTIMATED], [ALIGNED, ESTIMATED], [])]
    assert found == ["aligned", "estimated", "mixed", "estimated"]
