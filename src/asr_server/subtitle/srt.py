"""Cues to a SubRip file. Not where cues are broken."""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.subtitle.cues import Cue


def render(cues: Iterable[Cue]) -> str:
    """The whole file: numbers from 1, `HH:MM:SS,mmm` times, a blank line after each cue. "" for no cues."""
    return "".join(f"{i}\n{_span(cue)}\n{cue.text.strip()}\n\n" for i, cue in enumerate(cues, start=1))


def _span(cue: Cue) -> str:
    return f"{timestamp(cue.start_ms, ',')} --> {timestamp(cue.end_ms, ',')}"


def timestamp(ms: int, point: str) -> str:
    """`HH:MM:SS` and milliseconds behind `point`; hours grow past two digits rather than wrap."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{ms:03}"
