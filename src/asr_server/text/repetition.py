"""Removes decoding loops from a text: "thank you thank you thank you ..." becomes "thank you".

The model's own package collapses units of up to 20 characters that occur 20 times or more. Language models also loop
on whole sentences, a few times: this module adds those. Both rules keep repetitions that people say ("no no no", "zero
zero zero zero").
"""

from __future__ import annotations

import re

_MAX_UNIT_CHARS = 400
_SHORT_UNIT_CHARS = 20
_SHORT_REPEATS = 20
_LONG_REPEATS = 5

# A unit repeated at least n times in a row, with spaces or nothing between. Lazy, so that the shortest unit matches.
_SHORT = re.compile(rf"(\S(?:.{{0,{_SHORT_UNIT_CHARS - 1}}}?))(?:\s*\1){{{_SHORT_REPEATS - 1},}}", re.DOTALL)


def collapse(text: str) -> str:
    """`text` with every loop replaced by its first unit.

    A loop is a unit of up to 20 characters that occurs 20 times or more in a row, or one of 21 to 400 characters that
    occurs 5 times or more.
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
    # A unit can end only where its first characters occur again: find() skips all other lengths.
    probe = text[start : start + 8]
    next_at = text.find(probe, start + _SHORT_UNIT_CHARS + 1, start + longest + len(probe) + 1)
    while next_at != -1:
        # White space alone is no unit: stripped, it would match everywhere and never end.
        if unit := text[start:next_at].rstrip():
            end, count = _count(text, start, unit)
            if count >= _LONG_REPEATS:
                return unit, end
        next_at = text.find(probe, next_at + 1, start + longest + len(probe) + 1)
    return "", start


def _count(text: str, start: int, unit: str) -> tuple[int, int]:
    end, count = start, 0
    while True:
        at = end
        while at < len(text) and text[at].isspace() and count:
            at += 1
        if not text.startswith(unit, at):
            return end, count
        end, count = at + len(unit), count + 1
