"""Words to cues: the division into cues that costs least, by dynamic programming. Not layout, not a file format.

What gives way to what, the strongest first:

1. Nothing is lost and nothing overlaps: every word is in one cue, in order; every cue lasts 1 ms at least. None is
   shown beyond the end of the recording.
2. A cue has one speaker.
3. Lines: a cue fits into `max_lines` of `max_line_columns`. Only a single word wider than a line overruns it.
4. Time: no cue lasts longer than `max_duration_ms`; that of a single word that does is taken away early.
5. Gap: at least `min_gap_ms` between cues. Only where the next cue begins within twice that time there is none.
6. Minimum: a cue shorter than `min_duration_ms` stands only where joining it to either neighbour would break 2 to 4 or
   still be too short.
7. Reading speed: a cue stays on behind its speech for as long as reading takes, if 4 and 5 let it. It is too fast only
   where it lasts until one of them.
8. Pauses: a cue bridges a silence of `pause_ms` or more only where a part would be too short or too fast on its own.
9. Sentences, then clauses, then short pauses are where cues end; full and nearly empty cues are avoided.

A cue begins with its first word. Rules 6 to 9 are prices, so that all of them are weighed over the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.layout import lines
from asr_server.subtitle.units import Passage, Unit, units
from asr_server.text.boundary import Boundary

# Prices, chosen by eye; only their order matters to the rules above. A border inside a clause is 30.
_CUE = 15.0
# Less the longer the pause there is.
_BORDER = {Boundary.TIED: 60.0, Boundary.NONE: 30.0, Boundary.CLAUSE: 10.0, Boundary.SENTENCE: 0.0}
_INNER_SENTENCE = 8.0
_INNER_PAUSE = 40.0
_FULL = 10.0  # of a cue that uses all columns; by the square, so that cues are filled alike
_SHORT = 1000.0  # and 1 for each missing millisecond
_FAST_MS = 0.03  # for each millisecond too few for reading

_NEVER_MS = 1 << 62  # when a recording ends of which nobody knows


def cues(passages: Iterable[Passage], rules: CueConfig, over_ms: int = _NEVER_MS) -> list[Cue]:
    """The passages, in order of time, as cues that follow `rules` as far as possible (see above).

    `over_ms`: when the recording ends.
    """
    spoken = units(passages, rules)
    table = _Table(spoken, rules, over_ms)
    borders = table.cheapest()
    return [
        Cue(spoken[first].start_ms, table.end_ms(first, last), lines(spoken[first:last], rules))
        for first, last in pairwise(borders)
    ]


class _Table:
    """Sums over the units, by which the cost of any cue is found in constant time."""

    def __init__(self, spoken: Sequence[Unit], rules: CueConfig, over_ms: int = _NEVER_MS) -> None:
        self._units, self._rules = spoken, rules
        self._over_ms = max([over_ms, *(unit.end_ms for unit in spoken[-1:])])
        # Behind the last cue nothing begins to which it would need a gap.
        self._start = [*(unit.start_ms for unit in spoken), self._over_ms + rules.min_gap_ms]
        self._end = [unit.end_ms for unit in spoken]
        # Columns and reading time up to each unit, and up to it with the space before it, which a cue does not show.
        self._columns = [0, *accumulate(unit.columns + unit.spaced for unit in spoken)]
        self._reading = [0.0, *accumulate(rules.reading_ms(u.columns + u.spaced, u.wide) for u in spoken)]
        self._columns_before = [c + unit.spaced for c, unit in zip(self._columns, spoken, strict=False)]
        space_ms = rules.reading_ms(1, 0)
        self._reading_before = [r + space_ms * unit.spaced for r, unit in zip(self._reading, spoken, strict=False)]
        # What is paid for a border behind each unit, and up to each unit for all the borders that are not.
        self._border, self._inner = [], [0.0]
        for unit, after in pairwise(spoken):
            border, inner = _prices(unit, after.start_ms - unit.end_ms, rules)
            self._border.append(border)
            self._inner.append(self._inner[-1] + inner)
        self._border.append(0.0)

    def cheapest(self) -> list[int]:
        """Where cues begin in the cheapest division, as numbers of units, and their count at the end."""
        count = len(self._units)
        best, came = [0.0] + [math.inf] * count, [0] * (count + 1)
        for first, limit in enumerate(self._limits()):
            for last, cost in enumerate(self._costs(first, limit), start=first + 1):
                if best[first] + cost < best[last]:
                    best[last], came[last] = best[first] + cost, first
        borders = [count]
        while borders[-1]:
            borders.append(came[borders[-1]])
        return borders[::-1]

    def end_ms(self, first: int, last: int) -> int:
        """When a cue of units [first, last) ends: after its speech and its reading time, but before it must."""
        needed = max(self._rules.min_duration_ms, self._reading[last] - self._reading_before[first])
        wanted = max(self._end[last - 1], self._start[first] + math.ceil(needed))
        return min(wanted, self._start[first] + self.longest_ms(first, last), self._over_ms)

    def longest_ms(self, first: int, last: int) -> int:
        """How long a cue of units [first, last) may stay."""
        room = self._start[last] - self._start[first]
        return _longest_ms(room, self._rules.min_gap_ms, self._rules.max_duration_ms)

    def _costs(self, first: int, limit: int) -> Iterator[float]:
        """Of the cues from `first` to each end up to `limit`, and of the border behind them. The innermost loop."""
        least, per_column = self._rules.min_duration_ms, 1 / (self._rules.max_lines * self._rules.max_line_columns)
        columns, reading, inner = self._columns_before[first], self._reading_before[first], self._inner[first]
        gap, longest, start = self._rules.min_gap_ms, self._rules.max_duration_ms, self._start[first]
        for last in range(first + 1, limit + 1):
            shown = _longest_ms(self._start[last] - start, gap, longest)
            fill = (self._columns[last] - columns) * per_column
            cost = _CUE + _FULL * fill * fill + self._border[last - 1] + self._inner[last - 1] - inner
            if shown < least:
                yield cost + _SHORT + least - shown
            else:
                lack = self._reading[last] - reading - shown
                yield cost + _FAST_MS * lack if lack > 0 else cost

    def _limits(self) -> list[int]:
        """For each unit the end of the longest cue that may begin with it: by speaker, lines and duration."""
        count, rules = len(self._units), self._rules
        line_ends = [
            *self._furthest(lambda i, j: self._columns[j] - self._columns_before[i] <= rules.max_line_columns),
            count,
        ]
        turns = self._furthest(lambda i, j: self._units[i].speaker == self._units[j - 1].speaker)
        in_time = self._furthest(lambda i, j: self._end[j - 1] - self._start[i] <= rules.max_duration_ms)
        limits = []
        for first in range(count):
            full = first
            for _ in range(rules.max_lines):
                full = line_ends[full]
            limits.append(min(full, turns[first], in_time[first]))
        return limits

    def _furthest(self, fits: Callable[[int, int], bool]) -> list[int]:
        """For each unit the furthest end up to which all runs from it fit; one unit always does."""
        count, ends, end = len(self._units), [], 0
        for first in range(count):
            end = max(end, first + 1)
            while end < count and fits(first, end + 1):
                end += 1
            ends.append(end)
        return ends


def _longest_ms(room_ms: int, gap_ms: int, longest_ms: int) -> int:
    """How long a cue may stay if the next begins `room_ms` after it: until its longest, or a gap before that."""
    if room_ms > 2 * gap_ms:
        room_ms -= gap_ms
    return room_ms if room_ms < longest_ms else longest_ms


def _prices(unit: Unit, silence_ms: int, rules: CueConfig) -> tuple[float, float]:
    """Of a border behind `unit`, and of none, with so much silence there."""
    if silence_ms >= rules.pause_ms:
        return 0.0, _INNER_PAUSE
    border = _BORDER[unit.ends]
    if silence_ms > 0:  # words may also overlap, and a pause be 0
        border *= 1 - silence_ms / rules.pause_ms
    return border, _INNER_SENTENCE if unit.ends is Boundary.SENTENCE else 0.0
