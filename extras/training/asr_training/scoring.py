"""Word and character error rates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rapidfuzz.distance.Levenshtein import distance

from asr_training.vocabulary import Language, units


@dataclass(frozen=True)
class Pair:
    """A reference (`said`) and the model's transcription (`written`)."""

    language: Language | None
    said: str
    written: str


def error_rate(pairs: Iterable[Pair]) -> float:
    """Errors per unit said (words; characters for Mandarin), over all pairs together; 0 for nothing said."""
    errors = total = 0
    for pair in pairs:
        said, written = units(pair.language, pair.said), units(pair.language, pair.written)
        errors += distance(said, written)
        total += len(said)
    return errors / total if total else 0.0
