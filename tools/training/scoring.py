"""Word and character error rates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.training.vocabulary import Language, units


def distance(said: Sequence[str], written: Sequence[str]) -> int:
    """Levenshtein distance: substitutions, insertions and deletions between two sequences."""
    row = list(range(len(written) + 1))
    for i, left in enumerate(said, 1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(written, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


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
