"""The boundary at the end of a word or a text, of a sentence, a clause or neither, by the punctuation at its end."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

_TAIL = re.compile(r"[^\w\u0300-\u036f]*")  # of the reversed word: a search for the end takes quadratic time
# Includes scripts that occur only in translations: Armenian, Ethiopic, Khmer, Burmese, Tibetan.
_CLAUSE = re.compile("[,;:、，；：､،؛—–՝፣၊]")
SENTENCE_MARKS = ".!?…。．！？｡।॥؟۔։።។။།"
_SENTENCE = re.compile(f"[{SENTENCE_MARKS}]")
# Abbreviations whose full stop ends no sentence. A single letter is one too: "Dr. Who", "J. S. Bach".
_TITLES = re.compile(r"mr|mrs|ms|dr|prof|st|sr|jr|vs|hr|fr|nr|bzw|sra|srta|mme|mlle", re.IGNORECASE)
# Ordinals as in dates, "am 3. Mai". "at 10." at the end of a sentence looks the same; years and sums are longer.
_ORDINAL = re.compile(r"\W*\d{1,2}")
# A sentence end in any script that the model writes, and perhaps closing quotes and brackets.
_SENTENCE_END = re.compile(f"[{SENTENCE_MARKS}][\"'”’»」』)\\]）]*\\s*\\Z")


class Boundary(IntEnum):
    """Ordered by strength. `TIED`: the word belongs to the next one, as a title does, "Dr. Who"."""

    TIED = -1
    NONE = 0
    CLAUSE = 1
    SENTENCE = 2


@lru_cache(maxsize=65_536)
def after(word: str) -> Boundary:
    """Return the strongest boundary among the punctuation at the end of `word`."""
    tail = word[len(word) - _TAIL.match(word[::-1]).end() :]  # type: ignore[union-attr]  # it matches any string
    if tail == "." and (kind := _abbreviated(word[:-1])) is not None:
        return kind
    if _SENTENCE.search(tail):
        return Boundary.SENTENCE
    return Boundary.CLAUSE if _CLAUSE.search(tail) else Boundary.NONE


def ends_sentence(text: str) -> bool:
    return bool(_SENTENCE_END.search(text))


def _abbreviated(core: str) -> Boundary | None:
    """Return the boundary after an abbreviation or ordinal with a full stop; None for any other word."""
    letters = re.split(r"\W", core)[-1]
    if _TITLES.fullmatch(letters):
        return Boundary.TIED
    is_initial = len(letters) == 1 and letters.isalpha() and letters.isascii()
    return Boundary.NONE if is_initial or _ORDINAL.fullmatch(core) else None
