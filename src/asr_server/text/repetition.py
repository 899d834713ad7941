"""Cuts decoding loops out of a text: "thank you thank you thank you ..." becomes one. Not a style corrector.

The model's own package folds units of up to 20 characters that come 20 times or more. Language models also loop on
whole sentences, a handful of times: that is what this adds. Both rules leave what people say alone ("no no no",
"zero zero zero zero").
"""

from __future__ import annotations

import re

_MAX_UNIT_CHARS = 400
_SHORT_UNIT_CHARS = 20
_SHORT_REPEATS = 20
_LONG_REPEATS = 5

# A unit repeated at least n times in a row, the joints being spaces or nothing. Lazy, so the shortest unit wins.
_SHORT = re.compile(rf"(\S(?:.{{0,{_SHORT_UNIT_CHARS - 1}}}?))(?:\s*\1){{{_SHORT_REPEATS - 1},}}", re.DOTALL)


def collapse(text: str) -> str:
    """`text` with every loop replaced by its first turn.

    A loop is a unit of up to 20 characters said 20 times or more, or one of 21 to 400 characters said 5 times or more.
    """
    return _collapse_long(_SHORT.sub(r"\1", text))


def _collapse_long(text: str) -> str:
    if len(text) < (_SHORT_UNIT_CHARS + 1) * _LONG_REPEATS:
        return text
    position = 0
    while position < len(text):
        unit, end = _loop_at(text, position)
        if unit:
            text = text[: position + len(unit)] + text[end:]
        position += 1
    return text


def _loop_at(text: str, start: int) -> tuple[str, int]:
    """The unit of the long loop that begins at `start` and where the loop ends, or ("", start)."""
    longest = min(_MAX_UNIT_CHARS, (len(text) - start) // _LONG_REPEATS + 1)
    # Only where the text comes back to the same few characters can a unit end: find() skips all other lengths.
    probe = text[start : start + 8]
    next_at = text.find(probe, start + _SHORT_UNIT_CHARS + 1, start + longest + len(probe) + 1)
    while next_at != -1:
        # White space alone is no unit: nothing would stand everywhere, without end.
        if unit := text[start:next_at].rstrip():
            end, turns = _count(text, start, unit)
            if turns >= _LONG_REPEATS:
                return unit, end
        next_at = text.find(probe, next_at + 1, start + longest + len(probe) + 1)
    return "", start


def _count(text: str, start: int, unit: str) -> tuple[int, int]:
    end, turns = start, 0
    while True:
        at = end
        while at < len(text) and text[at].isspace() and turns:
            at += 1
        if not text.startswith(unit, at):
            return end, turns
        end, turns = at + len(unit), turns + 1
