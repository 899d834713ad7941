"""What a word ends: a sentence, a clause, or nothing, by its last marks. Not grammar."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

_TAIL = re.compile(r"[^\w\u0300-\u036f]*$")
# Also of scripts that only translations are written in: Armenian, Ethiopic, Khmer, Burmese, Tibetan.
_CLAUSE = re.compile("[,;:、，；：､،؛—–՝፣၊]")
_SENTENCE = re.compile("[.!?…。．！？｡।॥؟۔։።។။།]")
# Written with a point that ends nothing, as is a single letter: "Dr. Who", "J. S. Bach".
_TITLES = re.compile(r"mr|mrs|ms|dr|prof|st|sr|jr|vs|hr|fr|nr|bzw|sra|srta|mme|mlle", re.IGNORECASE)
# Many languages write dates so, "am 3. Mai", and all of them the end of "at 10."; years and sums are longer.
_ORDINAL = re.compile(r"\W*\d{1,2}")


class Boundary(IntEnum):
    """Ordered by strength. `TIED`: the word belongs to the one behind it, as a title does, "Dr. Who"."""

    TIED = -1
    NONE = 0
    CLAUSE = 1
    SENTENCE = 2


@lru_cache(maxsize=65_536)
def after(word: str) -> Boundary:
    """The strongest boundary that the marks at the end of `word` write."""
    tail = word[_TAIL.search(word).start() :]  # type: ignore[union-attr]  # it matches any string
    if tail == "." and (kind := _abbreviated(word[:-1])) is not None:
        return kind
    if _SENTENCE.search(tail):
        return Boundary.SENTENCE
    return Boundary.CLAUSE if _CLAUSE.search(tail) else Boundary.NONE


def _abbreviated(core: str) -> Boundary | None:
    """What a word ends that is written with a point as an abbreviation or ordinal is; None for any other."""
    letters = re.split(r"\W", core)[-1]
    if _TITLES.fullmatch(letters):
        return Boundary.TIED
    is_initial = len(letters) == 1 and letters.isalpha() and letters.isascii()
    return Boundary.NONE if is_initial or _ORDINAL.fullmatch(core) else None
