"""Continues a text that is already shown with a new version of it, which may disagree with the shown words."""

from __future__ import annotations

import re

from asr_server.text.scripts import LETTERS, PUNCTUATION, joint

# A word with the space before it; a character in scripts without spaces.
_UNIT = re.compile(rf"\s*(?:[{LETTERS}{PUNCTUATION}]|[^\s{LETTERS}{PUNCTUATION}]+)")


def continued(shown: str, text: str) -> str:
    """Return the shown words, then the words of `text` after them: no word of `shown` is removed, none is repeated.

    Both are aligned from the beginning with the fewest changed words. If `text` begins with `shown`, it is the result.
    """
    if text.startswith(shown):
        return text
    ours, theirs = _units(shown), _units(text)
    reached, used = _aligned([key(unit) for unit in ours], [key(unit) for unit in theirs])
    if reached < len(ours):
        return shown
    rest = "".join(theirs[used:])
    if rest and not rest[0].isspace():
        rest = joint(shown, rest) + rest
    return shown + rest


def _units(text: str) -> list[str]:
    return _UNIT.findall(text.rstrip())  # in spaces at the end, a search takes quadratic time


def key(unit: str) -> str:
    return "".join(char for char in unit.casefold() if char.isalnum()) or unit.strip()


def _aligned(ours: list[str], theirs: list[str]) -> tuple[int, int]:
    """Return how many units of each correspond, so that one of the two is used up; of equally good results the
    longest."""
    costs = list(range(len(theirs) + 1))
    best = (len(theirs), 0, len(theirs))  # cost, ours, theirs: the last column, then the last row
    for i, mine in enumerate(ours, start=1):
        above, costs[0] = costs[0], i
        for j, their in enumerate(theirs, start=1):
            above, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, above + (mine != their))
        if costs[-1] <= best[0]:
            best = (costs[-1], i, len(theirs))
    for j, cost in enumerate(costs):
        if cost < best[0] or (cost == best[0] and best[1] == len(ours)):
            best = (cost, len(ours), j)
    return best[1], best[2]
