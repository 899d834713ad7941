"""Word and character errors of a text against its reference, the time of each error, and intervals of error rates.

Both texts are normalised first: English by Whisper's rules for English, other languages by its basic rules. In scripts
without spaces between words, such as Chinese, Japanese and Thai, each character counts as a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein, Opcodes
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from asr_server.cli.evaluate.references import language_name
from asr_server.text import scripts

Bounds = tuple[float, float]
TimedWord = tuple[str, float, float]  # text, start and end in seconds
LEVEL = 0.95
# In simulations an interval of 95 % held the true rate for 92 % of sets of this size, and for fewer of smaller ones.
LEAST_UNITS = 8
_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class ComparedPassage:
    """Adjacent words on which the texts agree, or adjacent errors."""

    said: str  # in the reference
    heard: str
    start_s: float
    end_s: float

    @property
    def is_error(self) -> bool:
        """Return True if the texts differ here."""
        return self.said != self.heard


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Errors in words or in characters."""

    units: int = 0  # of the reference
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    def __add__(self, other: ErrorCount) -> ErrorCount:
        return ErrorCount(
            self.units + other.units,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )

    @property
    def errors(self) -> int:
        """Return the errors of all kinds."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Return errors per unit; infinite if a reference without words got some."""
        return self.errors / self.units if self.units else (float("inf") if self.errors else 0.0)


@dataclass(frozen=True, slots=True)
class Score:
    """One text against its reference."""

    words: ErrorCount
    characters: ErrorCount  # including the spaces between words
    passages: tuple[ComparedPassage, ...]


def score(
    reference: str, text: str, language: str, *, normalise: bool = True, timed: Sequence[TimedWord] = ()
) -> Score:
    """Return the errors of a text. `timed` has the words of the text with their times; without them all times are 0."""
    said, heard = tokens(reference, language, normalise=normalise), tokens(text, language, normalise=normalise)
    steps = Levenshtein.opcodes(said, heard)
    whole, written = scripts.join(said), scripts.join(heard)
    passages = _passages(said, heard, steps, _times(heard, timed))
    return Score(_count(len(said), steps), _count(len(whole), Levenshtein.opcodes(whole, written)), tuple(passages))


def tokens(text: str, language: str, *, normalise: bool) -> list[str]:
    """Return the words of a text that are compared."""
    words = _normaliser(language)(text).split() if normalise else text.split()
    kept = words if not normalise else [word for word in words if any(map(str.isalnum, word))]
    return [
        token
        for word in kept
        for unspaced, run in groupby(word, scripts.is_unspaced)
        for token in (run if unspaced else ("".join(run),))
    ]


@cache
def _normaliser(language: str) -> Callable[[str], str]:
    if language_name(language).endswith("English"):
        return EnglishTextNormalizer()  # type: ignore[no-any-return]  # the library has no types
    # Without its marks a word of Hindi, Thai or Arabic would be divided at each of its vowels.
    return BasicTextNormalizer(preserve_marks=True)  # type: ignore[no-any-return]


def _count(units: int, steps: Opcodes) -> ErrorCount:
    said = {
        tag: sum(step.src_end - step.src_start for step in steps if step.tag == tag) for tag in ("replace", "delete")
    }
    inserted = sum(step.dest_end - step.dest_start for step in steps if step.tag == "insert")
    return ErrorCount(units, said["replace"], said["delete"], inserted)


def _blocks(steps: Opcodes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the ranges of both texts, equal and unequal ones, as (start, end, start, end)."""
    for _, run in groupby(steps, key=lambda step: step.tag == "equal"):
        block = list(run)
        yield block[0].src_start, block[-1].src_end, block[0].dest_start, block[-1].dest_end


def _passages(
    said: Sequence[str], heard: Sequence[str], steps: Opcodes, times: Sequence[Bounds]
) -> Iterator[ComparedPassage]:
    for said_from, said_to, heard_from, heard_to in _blocks(steps):
        if heard_from < heard_to:
            start_s, end_s = times[heard_from][0], times[heard_to - 1][1]
        else:  # missing words have the gap between their neighbours, which may be one word of the server's
            before = times[heard_from - 1][1] if heard_from else 0.0
            after = times[heard_from][0] if heard_from < len(times) else before
            start_s, end_s = min(before, after), max(before, after)
        yield ComparedPassage(
            scripts.join(said[said_from:said_to]), scripts.join(heard[heard_from:heard_to]), start_s, end_s
        )


def _times(heard: Sequence[str], timed: Sequence[TimedWord]) -> list[Bounds]:
    """Return start and end of each normalised word in seconds.

    Normalisation joins words ("twenty one" is 21) and divides them ("don't" is do not). So the characters of both are
    aligned: a word has the time of the words in which its first and its last character stand.
    """
    owners = [number for number, (text, _, _) in enumerate(timed) for _ in text.lower()]
    if not owners:
        return [(0.0, 0.0)] * len(heard)
    steps = Levenshtein.opcodes("".join(heard).lower(), "".join(text for text, _, _ in timed).lower())
    last, places = len(owners) - 1, list[tuple[int, int]]()
    for start, end, other, other_end in _blocks(steps):
        for i in range(end - start):
            first = other + i * (other_end - other) // (end - start)
            final = other + ((i + 1) * (other_end - other) - 1) // (end - start)
            places.append((min(first, last), min(max(first, final), last)))
    found, at = [], 0
    for word in map(str.lower, heard):
        found.append((timed[owners[places[at][0]]][1], timed[owners[places[at + len(word) - 1][1]]][2]))
        at += len(word)
    return found


@dataclass(frozen=True, slots=True)
class Draws:
    """Sums of counts over recordings that are drawn again and again, with replacement.

    Both systems are measured on the same draws (Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR
    performance evaluation", ICASSP 2004). The errors of one speaker are not independent, so speakers are drawn if all
    are known and there are enough.
    """

    sums: NDArray[np.float64]  # (draws, columns)
    units: int  # recordings or speakers in each draw

    @classmethod
    def of(cls, counts: Sequence[Sequence[float]], speakers: Sequence[str]) -> Draws | None:
        """Draw rows of `counts`. Return None if there are fewer than `LEAST_UNITS`."""
        table = np.asarray(counts, np.float64)
        if draws_speakers(speakers):
            _, numbers = np.unique(np.asarray(speakers), return_inverse=True)
            table = np.stack([np.bincount(numbers, column) for column in table.T], axis=1)
        if len(table) < LEAST_UNITS:
            return None
        generator = np.random.default_rng(2004)  # two runs print the same
        at_once = max(1, 1_000_000 // len(table))  # a million units, which bounds the memory
        sums = []
        for begin in range(0, _DRAWS, at_once):
            chosen = generator.integers(len(table), size=(min(at_once, _DRAWS - begin), len(table)))
            sums.append(np.stack([column[chosen].sum(axis=1) for column in table.T.copy()], axis=1))
        return cls(np.concatenate(sums), len(table))

    def interval(self, errors: int, total: int, other: int | None = None) -> Bounds | None:
        """Return the interval of a rate, or of its difference to the rate of the column `other`; None if unknown.

        Percentiles of few draws are too narrow. They are widened by as much as Student's distribution is wider than the
        normal one (Hesterberg, "What teachers should know about the bootstrap", The American Statistician 69, 2015).
        """
        sums = self.sums[self.sums[:, total] > 0]
        rates = (sums[:, errors] - (0 if other is None else sums[:, other])) / sums[:, total]
        # If all draws are the same, as without any error, they say nothing about other recordings.
        if not rates.size or rates.min() == rates.max():
            return None
        normal, free = NormalDist(), self.units - 1
        z = normal.inv_cdf((1 + LEVEL) / 2)
        # The quantile of Student's distribution by its expansion in 1 / free: 0.4 % too small for 8 units.
        student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
        tail = normal.cdf(-student * (self.units / free) ** 0.5)
        low, high = np.quantile(rates, [tail, 1 - tail])
        return float(low), float(high)


def draws_speakers(speakers: Sequence[str]) -> bool:
    """Return True if each recording has a speaker, and there are enough of them."""
    return all(speakers) and len(set(speakers)) >= LEAST_UNITS
