"""Joins the texts of neighbouring spans as their script is written. Not punctuation restoration."""

from __future__ import annotations

from collections.abc import Iterable

# Scripts written without spaces between words, and CJK punctuation, by code point range (Unicode 16 blocks).
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x312F),  # CJK radicals and punctuation, Hiragana, Katakana, Bopomofo
    (0x31A0, 0x9FFF),  # CJK extensions and unified ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0xFF00, 0xFFEF),  # full-width forms
    (0x20000, 0x3FFFF),  # CJK supplementary planes
)


def join(texts: Iterable[str]) -> str:
    """One text of many: a space between spans, none where both sides are of a script without spaces."""
    joined = ""
    for text in (t.strip() for t in texts):
        if not text:
            continue
        joined += f"{joint(joined, text)}{text}"
    return joined


def joint(left: str, right: str) -> str:
    """What stands between two texts: a space, or nothing between scripts without spaces and at the beginning."""
    if not left or not right or (is_unspaced(left[-1]) and is_unspaced(right[0])):
        return ""
    return " "


def is_unspaced(char: str) -> bool:
    """Whether `char` belongs to a script that puts no spaces between words."""
    point = ord(char)
    return any(low <= point <= high for low, high in _UNSPACED)
