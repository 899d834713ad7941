"""Subtitle files read back: SRT and WebVTT to cues."""

from __future__ import annotations

import re
from pathlib import Path

_STAMP = r"(\d\d):(\d\d):(\d\d)[.,](\d{3})"


def cues(path: Path) -> list[tuple[float, float, str]]:
    """Start and end in seconds, and the text with its lines joined."""
    found = re.findall(rf"{_STAMP} --> {_STAMP}\n((?:.+\n)+)", path.read_text(encoding="utf-8"))
    return [(_seconds(c[:4]), _seconds(c[4:8]), c[8].strip().replace("\n", " ")) for c in found]


def _seconds(parts: tuple[str, ...]) -> float:
    h, m, s, ms = map(int, parts)
    return 3600 * h + 60 * m + s + ms / 1000
