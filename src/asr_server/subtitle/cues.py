"""A cue: some text on the screen for some time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cue:
    """`text` without line numbers or times; shown from `start_ms` until just before `end_ms`."""

    start_ms: int
    end_ms: int
    text: str
