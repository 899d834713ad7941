"""The width of a text in columns, as terminals and subtitle rules count them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from wcwidth import wcswidth, wcwidth


class Width(NamedTuple):
    """The width of a text."""

    columns: int  # display columns
    wide: int  # characters that take two of them


@lru_cache(maxsize=65_536)
def measure(text: str) -> Width:
    """Return the width of a text without control characters: CJK counts two columns, a combining mark none."""
    if text.isascii():
        return Width(len(text), 0)
    columns = max(0, wcswidth(text))
    wide = sum(1 for char in text if wcwidth(char) == 2)
    return Width(columns, min(wide, columns // 2))  # several wide characters may combine to one, as emoji do
