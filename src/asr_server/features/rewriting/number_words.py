"""Finds numbers that are written in words, by text2num (MIT), in seven languages."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The languages of `speech_output/spoken_form.py`, so that each one works in both directions.
LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pt")

_TOKEN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
# A single word for one of these values is often part of a number ("25 million") or not exact ("a hundred times").
_SCALES = frozenset([100.0, 1e3, 1e6, 1e9, 1e12])
_ARTICLES = {"en": {"a"}, "de": {"ein", "eine"}}
# An isolated number up to this one often is not meant as a number ("one of us", "the second"): text2num's own bound.
_LEAST = 3.0


@dataclass(frozen=True, slots=True)
class NumberWord:
    """A number in words, and its place in the text."""

    start: int  # first character
    end: int  # character after the last
    text: str  # in digits
    is_ordinal: bool
    # It may not be a number: it stands by itself and is small, or is a single word of a scale.
    is_doubtful: bool

    @property
    def value(self) -> int | None:
        """The value of a cardinal number without a fraction, else None."""
        return int(self.text) if self.text.isascii() and self.text.isdigit() and not self.is_ordinal else None


@dataclass(frozen=True, slots=True)
class _Token:
    """A word with the methods that text2num calls."""

    match: re.Match[str]

    def text(self) -> str:
        return self.match[0]

    def nt_separated(self, previous: _Token) -> bool:
        return False

    def not_a_number_part(self) -> bool:
        return False


def found(text: str, language: str) -> list[NumberWord]:
    """Return the numbers in words, in order. `language`: one of `LANGUAGES`."""
    from text_to_num import find_numbers

    tokens = [_Token(match) for match in _TOKEN.finditer(text)]
    certain = {(one.start, one.end) for one in find_numbers(tokens, language, _LEAST)}
    numbers = []
    for one in find_numbers(tokens, language, 0.0):
        start, is_scale = one.start, one.end - one.start == 1 and one.value in _SCALES
        before = tokens[start - 1].text() if start else ""
        is_begun = any(map(str.isdigit, before))
        if (is_begun or before.lower() in _ARTICLES.get(language, ())) and any(
            first.value in _SCALES for first in find_numbers([tokens[start]], language, 0.0)
        ):
            if is_begun:  # in digits: "25 thousand"
                continue
            start -= 1
        place = tokens[start].match.start(), tokens[one.end - 1].match.end()
        is_doubtful = is_scale or (one.start, one.end) not in certain
        numbers.append(NumberWord(*place, one.text, one.is_ordinal, is_doubtful))
    return numbers
