"""Divides a text into balanced lines.

As few lines as the text needs, of nearly the same width, and rather divided after a sentence or clause than inside
one. A unit that is wider than a line gets a line of its own; units are never divided. Since punctuation is part of its
word, no line begins with a closing mark or ends with an opening one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.units import Unit, leave_room, untimed_units
from asr_server.text.boundary import Boundary

# The cost of a line break, in squared columns of unevenness. Chosen by eye.
_BREAK = {Boundary.TIED: 400.0, Boundary.NONE: 100.0, Boundary.CLAUSE: 25.0, Boundary.SENTENCE: 0.0}


def relayout(text: str, rules: CueConfig, speaker: str = "") -> str:
    """`text`, a translation for instance, in balanced lines: more than `max_lines` if it does not fit into those.

    `speaker`: the name that will be shown before the text.
    """
    units = untimed_units(text, rules)
    if units and speaker:
        units[0] = leave_room(units[0], speaker)
    return lines(units, rules)


def lines(units: Sequence[Unit], rules: CueConfig) -> str:
    """Return the units as lines with "\n" between them, none wider than the limit, except for single units that are
    wider."""
    breaks = _breaks(_Widths(units), units, rules.max_line_columns) if units else []
    starts = [0, *breaks]
    return "\n".join(_text(units[a:b]) for a, b in zip(starts, [*breaks, len(units)], strict=True))


def _text(line: Sequence[Unit]) -> str:
    return "".join(f" {unit.text}" if i and unit.spaced else unit.text for i, unit in enumerate(line))


class _Widths:
    """Columns of any run of units, without the space before its first."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._upto = [0, *accumulate(unit.columns + unit.spaced for unit in units)]
        self._spaced = [unit.spaced for unit in units]
        self.count = len(units)

    def of(self, first: int, last: int) -> int:
        return self._upto[last] - self._upto[first] - self._spaced[first]


def _breaks(widths: _Widths, units: Sequence[Unit], limit: int) -> list[int]:
    """Return the units with which the second and later lines begin."""
    count = widths.count
    if widths.of(0, count) <= limit or count == 1:
        return []
    total = _least_lines(widths, limit)
    ideal = widths.of(0, count) / total
    layer: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # for each end of the lines so far: cost and line ends
    for line in range(1, total + 1):
        grown: dict[int, tuple[float, list[int]]] = {}
        for end in range(line, count - (total - line) + 1) if line < total else [count]:
            break_cost = _BREAK[units[end - 1].ends] if end < count else 0.0
            choices = [
                (cost + break_cost + (widths.of(start, end) - ideal) ** 2, [*ends, end])
                for start, (cost, ends) in layer.items()
                if start < end and (widths.of(start, end) <= limit or end == start + 1)
            ]
            if choices:
                grown[end] = min(choices)
        layer = grown
    return layer[count][1][:-1]


def _least_lines(widths: _Widths, limit: int) -> int:
    """Return the number of lines if each is filled as far as possible."""
    needed, start = 1, 0
    for end in range(2, widths.count + 1):
        if widths.of(start, end) > limit:
            needed, start = needed + 1, end - 1
    return needed
