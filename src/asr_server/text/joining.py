"""Joins the texts of neighbouring spans as their script is written. Not punctuation restoration."""

from __future__ import annotations

from collections.abc import Iterable

from asr_server.text.scripts import is_unspaced


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
