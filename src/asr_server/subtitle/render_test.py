"""SRT and VTT rendering."""

import re

from hypothesis import given
from hypothesis import strategies as st

from asr_server.subtitle import srt, timecodes, vtt
from asr_server.subtitle.cues import Cue


@given(st.integers(0, 400 * 3600 * 1000))
def test_a_time_reads_back_as_itself(ms):
    """No millisecond is lost to rounding, at any hour."""
    h, m, s, milli = map(int, re.fullmatch(r"(\d{2,}):(\d\d):(\d\d),(\d{3})", timecodes.timestamp(ms, ",")).groups())
    assert ((h * 60 + m) * 60 + s) * 1000 + milli == ms


def test_srt_is_numbered_and_separated():
    """Numbers from one, a blank line after each cue, no leading space."""
    assert srt.render([Cue(0, 1500, " a "), Cue(61_000, 3_600_000, "b")]) == (
        "1\n00:00:00,000 --> 00:00:01,500\na\n\n2\n00:01:01,000 --> 01:00:00,000\nb\n\n"
    )


def test_vtt_escapes_what_would_be_markup():
    """Text with angle brackets and ampersands stays text."""
    assert vtt.render([Cue(0, 1, "a <b> & c")]) == "WEBVTT\n\n00:00:00.000 --> 00:00:00.001\na &lt;b&gt; &amp; c\n\n"


def test_no_cues_is_an_empty_file():
    """Silence renders as nothing, and as a bare header."""
    assert srt.render([]) == ""
    assert vtt.render([]) == "WEBVTT\n\n"
