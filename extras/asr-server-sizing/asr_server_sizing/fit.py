"""The costs of steps from measured points, by least squares. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asr_server_sizing.profile import StepCosts


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement: `fixed` times one cost and `each` times another took `seconds` together."""

    fixed: float
    each: float
    seconds: float


def costs(decode: Sequence[Point], prefill: Sequence[Point]) -> StepCosts:
    """Return the costs that fit best. Raises `ValueError` if there are fewer than two different points of either kind.

    A point of `decode` is steps and the rows in them, one of `prefill` is passes over prompts and their tokens.
    """
    return StepCosts(*line(decode), *line(prefill))


def line(points: Sequence[Point]) -> tuple[float, float]:
    """Return the costs, neither of them negative, with the least squares of relative errors.

    Raises `ValueError` if the points do not determine both.
    """
    weighted = [(point.fixed / point.seconds, point.each / point.seconds) for point in points if point.seconds > 0]
    ff, ee, fe = (sum(a * b for a, b in pairs) for pairs in _products(weighted))
    f, e = (sum(column) for column in zip(*weighted, strict=True)) if weighted else (0.0, 0.0)
    determinant = ff * ee - fe * fe
    if determinant <= 1e-9 * ff * ee:
        raise ValueError("the points do not differ enough to tell the two costs apart")
    fixed, each = (f * ee - e * fe) / determinant, (e * ff - f * fe) / determinant
    if fixed < 0:
        return 0.0, e / ee
    return (f / ff, 0.0) if each < 0 else (fixed, each)


def _products(weighted: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return [(f, f) for f, _ in weighted], [(e, e) for _, e in weighted], list(weighted)
