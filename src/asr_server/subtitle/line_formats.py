"""Writes cues as one line each: tab-separated values as the command of Whisper writes them, and LRC for lyrics.

A line begins with the name of its speaker where that is another than before.
"""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.subtitle.cues import Cue, with_names
from asr_server.text.joining import unbroken


def render_tsv(cues: Iterable[Cue]) -> str:
    """A header, then start and end in milliseconds and the text of each cue. No value has a tab inside."""
    rows = (f"{cue.start_ms}\t{cue.end_ms}\t{_line(cue)}\n" for cue in with_names(cues))
    return "start\tend\ttext\n" + "".join(rows)


def render_lrc(cues: Iterable[Cue]) -> str:
    """`[MM:SS.cc]` and the text of each cue; from 100 minutes on, minutes have three digits. "" for no cues."""
    return "".join(f"{_time(cue.start_ms)}{_line(cue)}\n" for cue in with_names(cues))


def _line(cue: Cue) -> str:
    return unbroken("\n".join(cue.lines))


def _time(ms: int) -> str:
    seconds, centiseconds = divmod(round(ms / 10), 100)
    minutes, seconds = divmod(seconds, 60)
    return f"[{minutes:02}:{seconds:02}.{centiseconds:02}]"
