"""Word and character errors of a text against its reference, and the time of each error in the recording.

Both texts are normalised first, so that spelling conventions are no errors: English by Whisper's rules for English
(numbers, contractions, British spelling), other languages by its basic rules (case and punctuation). A word is what
stands between spaces; in scripts without spaces between words, such as Chinese, Japanese and Thai, it is a character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from rapidfuzz.distance import Levenshtein, Opcode, Opcodes
from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from asr_server.cli.evaluate.answers import TimedWord
from asr_server.cli.evaluate.references import language_name
from asr_server.text import scripts


@dataclass(frozen=True, slots=True)
class ComparedPassage:
    """Words of the two texts that are the same, or an error: words that are wrong, missing or too many."""

    said: str  # by the reference
    heard: str
    start_s: float
    end_s: float

    @property
    def is_error(self) -> bool:
        """True if the texts differ here."""
        return self.said != self.heard


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Errors of one text, in words or in characters."""

    units: int  # of the reference
    substitutions: int
    deletions: int
    insertions: int

    @property
    def errors(self) -> int:
        """Return the errors of all kinds."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Return errors per unit; infinite where a text without words got some."""
        return self.errors / self.units if self.units else (float("inf") if self.errors else 0.0)


@dataclass(frozen=True, slots=True)
class Score:
    """One text against its reference."""

    words: ErrorCount
    characters: ErrorCount  # with the spaces between words
    passages: tuple[ComparedPassage, ...]


def score(
    reference: str, text: str, language: str, *, normalise: bool = True, timed: Sequence[TimedWord] = ()
) -> Score:
    """Return the errors of a text. `timed`: the text's words, from which errors get their times; without them, 0."""
    said, heard = tokens(reference, language, normalise=normalise), tokens(text, language, normalise=normalise)
    steps = Levenshtein.opcodes(said, heard)
    times = _times(heard, timed)
    return Score(
        _count(len(said), steps),
        _characters(said, heard),
        tuple(_passages(said, heard, steps, times)),
    )


def tokens(text: str, language: str, *, normalise: bool) -> list[str]:
    """Return the words of a text that are compared."""
    if normalise:
        words = [word for word in _normaliser(language)(text).split() if any(map(str.isalnum, word))]
    else:
        words = text.split()
    return [token for word in words for token in _divided(word)]


@cache
def _normaliser(language: str) -> Callable[[str], str]:
    english = language_name(language).endswith("English")
    normaliser: Callable[[str], str]
    # Without its marks a word of Hindi, Thai or Arabic would be divided at each of its vowels.
    normaliser = EnglishTextNormalizer() if english else BasicTextNormalizer(preserve_marks=True)
    return normaliser


def _divided(word: str) -> Iterator[str]:
    """Yield each character of a script without spaces, and what stands between such characters."""
    rest = ""
    for char in word:
        if not scripts.is_unspaced(char):
            rest += char
            continue
        if rest:
            yield rest
        rest = ""
        yield char
    if rest:
        yield rest


def _count(units: int, steps: Opcodes) -> ErrorCount:
    return ErrorCount(
        units,
        substitutions=sum(step.src_end - step.src_start for step in steps if step.tag == "replace"),
        deletions=sum(step.src_end - step.src_start for step in steps if step.tag == "delete"),
        insertions=sum(step.dest_end - step.dest_start for step in steps if step.tag == "insert"),
    )


def _characters(said: Sequence[str], heard: Sequence[str]) -> ErrorCount:
    reference = scripts.join(said)
    return _count(len(reference), Levenshtein.opcodes(reference, scripts.join(heard)))


def _passages(
    said: Sequence[str], heard: Sequence[str], steps: Opcodes, times: Sequence[tuple[float, float]]
) -> Iterator[ComparedPassage]:
    """Yield the passages in order. Errors next to each other are one: nobody listens to them one by one."""
    for block in _blocks(steps):
        start_s, end_s = _span(times, block.dest_start, block.dest_end)
        reference = scripts.join(said[block.src_start : block.src_end])
        yield ComparedPassage(reference, scripts.join(heard[block.dest_start : block.dest_end]), start_s, end_s)


def _blocks(steps: Opcodes) -> Iterator[Opcode]:
    """Yield the steps, those that are next to each other and not equal as one."""
    for _, run in groupby(steps, key=lambda step: step.tag == "equal"):
        first, *more = run
        last = more[-1] if more else first
        yield Opcode(first.tag, first.src_start, last.src_end, first.dest_start, last.dest_end)


def _span(times: Sequence[tuple[float, float]], start: int, end: int) -> tuple[float, float]:
    """Return start and end of these words in seconds; of no words, the gap between their neighbours."""
    if start < end:
        return times[start][0], times[end - 1][1]
    before = times[start - 1][1] if start else 0.0
    after = times[start][0] if start < len(times) else before
    return min(before, after), max(before, after)  # two neighbours may be one word of the server's


def _times(heard: Sequence[str], timed: Sequence[TimedWord]) -> list[tuple[float, float]]:
    """Return start and end of each normalised word in seconds.

    Normalisation joins words ("twenty one" is 21) and divides them ("don't" is do not), so the characters of both are
    aligned: a word has the time of the words in which its first and its last character stand.
    """
    owners = [number for number, word in enumerate(timed) for _ in word.text.lower()]
    if not owners:
        return [(0.0, 0.0)] * len(heard)
    lowered = [word.lower() for word in heard]
    steps = Levenshtein.opcodes("".join(lowered), "".join(word.text.lower() for word in timed))
    places = [place for block in _blocks(steps) for place in _stretched(block, len(owners) - 1)]
    found, at = [], 0
    for word in lowered:
        (first, _), (_, last) = places[at], places[at + len(word) - 1]
        found.append((timed[owners[first]].start_s, timed[owners[last]].end_s))
        at += len(word)
    return found


def _stretched(block: Opcode, last: int) -> Iterator[tuple[int, int]]:
    """Yield for each character of the first text its first and last place in the second, both at most `last`."""
    length, room = block.src_end - block.src_start, block.dest_end - block.dest_start
    for i in range(length):
        first = block.dest_start + i * room // length
        yield min(first, last), min(max(first, block.dest_start + ((i + 1) * room - 1) // length), last)
