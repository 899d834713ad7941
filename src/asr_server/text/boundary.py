"""What a word ends: a sentence, a clause, or nothing, by its last marks. Not grammar."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

_TAIL = re.compile(r"[^\w\u0300-\u036f]*$")
_CLAUSE = re.compile("[,;:、，；：،؛—–]")
_SENTENCE = re.compile("[.!?…。．！？।॥؟۔]")
# Written with a point that ends nothing, as is a single letter: "Dr. Who", "J. S. Bach".
_TITLES = re.compile(r"mr|mrs|ms|dr|prof|st|sr|jr|vs|hr|fr|nr|bzw|sra|srta|mme|mlle", re.IGNORECASE)


class Boundary(IntEnum):
    """Ordered by strength."""

    NONE = 0
    CLAUSE = 1
    SENTENCE = 2


@lru_cache(maxsize=65_536)
def after(word: str) -> Boundary:
    """The strongest boundary that the marks at the end of `word` write."""
    tail = word[_TAIL.search(word).start() :]  # type: ignore[union-attr]  # it matches any string
    if _SENTENCE.search(tail) and not (tail == "." and _is_abbreviated(word[:-1])):
        return Boundary.SENTENCE
    return Boundary.CLAUSE if _CLAUSE.search(tail) else Boundary.NONE


def _is_abbreviated(core: str) -> bool:
    letters = re.split(r"\W", core)[-1]
    return bool(_TITLES.fullmatch(letters)) or (len(letters) == 1 and letters.isalpha() and letters.isascii())
