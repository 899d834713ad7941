"""Cues to a WebVTT file. Not where cues are broken."""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.subtitle.cues import Cue
from asr_server.subtitle.srt import timestamp

# Cue text may not hold these raw: WebVTT, section 4.2.2 "WebVTT cue text".
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def render(cues: Iterable[Cue]) -> str:
    """The whole file: the header, then cues with `HH:MM:SS.mmm` times, a blank line after each."""
    body = "".join(f"{_span(cue)}\n{cue.text.strip().translate(_ESCAPES)}\n\n" for cue in cues)
    return f"WEBVTT\n\n{body}"


def _span(cue: Cue) -> str:
    return f"{timestamp(cue.start_ms, '.')} --> {timestamp(cue.end_ms, '.')}"
