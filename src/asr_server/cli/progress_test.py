"""Pace as people read it; how bars look on a terminal is tested in E2Etest/cli."""

import io
import sys

from hypothesis import given
from hypothesis import strategies as st

from asr_server.cli.progress import Event, ProgressBars, remaining_text, speed_text

_SECONDS = st.integers(1, 1_000_000).map(lambda n: n / 10)


def test_speed_and_remaining_time():
    """Nothing is said before anything is known; headers may claim less than there is."""
    for done_s, total_s, elapsed_s, speed, left in [
        (0, 60, 5, "", ""),
        (30, 60, 3, "10.0x", "0:03 left"),
        (30, None, 3, "10.0x", ""),
        (60, 3600, 60, "1.0x", "59:00 left"),
        (60, 7260, 60, "1.0x", "2:00:00 left"),
        (61, 60, 6, "10.2x", "0:00 left"),
    ]:
        assert (speed_text(done_s, elapsed_s), remaining_text(done_s, total_s, elapsed_s)) == (speed, left)


@given(done_s=_SECONDS, elapsed_s=_SECONDS, share=st.integers(1, 100).map(lambda n: n / 100))
def test_what_is_left_falls_as_more_is_reached(done_s, elapsed_s, share):
    """The time that is left is shorter the further it is, at one speed."""
    total_s = done_s * 2

    def left_s(text):
        parts = [int(p) for p in text.removesuffix(" left").split(":")]
        return sum(p * 60**i for i, p in enumerate(reversed(parts)))

    early = left_s(remaining_text(done_s * share, total_s, elapsed_s * share))
    assert early >= left_s(remaining_text(done_s, total_s, elapsed_s))


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_reached_is_on_the_terminal_at_once(monkeypatch):
    """The line is there also for a recording that is over before the display's next tick."""
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBars(wanted=True) as bars, bars.bar("a.wav") as show:
        show(Event(duration_s=10))
        show(Event(done_s=5))
        assert "left" in stream.getvalue()
