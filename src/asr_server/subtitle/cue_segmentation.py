"""Divides words into cues at the least cost, by dynamic programming.

The rules, strongest first. If two conflict, the later one gives way:

1. Nothing is lost and nothing overlaps: every word is in one cue, in order; every cue lasts at least 1 ms. No cue is
   shown beyond the end of the recording.
2. A cue has one speaker, or, with dashes, two in turn with a line each.
3. Lines: a cue fits into `max_lines` of `max_line_columns`. Only a single word wider than a line overruns it.
4. Time: no cue lasts longer than `max_duration_ms`; a single word that lasts longer disappears early.
5. Gap: at least `min_gap_ms` between cues. There is no gap only if the next cue begins within twice that time.
6. Minimum: a cue is shorter than `min_duration_ms` only if joining it to either neighbour would break 2 to 4 or the
   joined cue would still be too short.
7. Reading speed: a cue stays after its speech for as long as reading takes, if 4 and 5 allow it. It is too fast only
   if one of them ends it.
8. Pauses: a cue bridges a silence of `pause_ms` or more only if a part would be too short or too fast on its own.
9. Cues end after sentences, or else after clauses or at short pauses; full and nearly empty cues are avoided.

A cue begins with its first word. Rules 6 to 9 are costs, which are minimised over the whole text.

A cue has as few lines as its text needs. They have nearly the same width, and preferably end after a sentence or
clause. A unit, which is a word or, in scripts without spaces, a phrase, is never divided: a unit wider than a line gets
a line of its own. Since punctuation is part of its word, no line begins with a closing mark or ends with an opening
one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from asr_server.core.transcript import TimeSource, Word
from asr_server.subtitle.cues import Cue, CueConfig, SpeakerStyle, named, text_lines
from asr_server.text import words
from asr_server.text.scripts import is_unspaced, joint
from asr_server.text.words import Boundary, boundary_after, measure

_BREAKABLE_SPACE = re.compile(r"[^\S\u00a0\u2007\u202f]+")


@dataclass(frozen=True, slots=True)
class Passage:
    """The speech of one speaker in one span."""

    text: str
    words: Sequence[Word]  # with their times, in order
    speaker: str = ""  # "" for none


@dataclass(frozen=True, slots=True)
class Unit:
    """A word, or a phrase of a script without spaces."""

    text: str
    start_ms: int
    end_ms: int
    spaced: bool  # the text has a space before it
    speaker: str
    columns: int  # see `words.Width`; the name of the speaker counts too if it will be shown before the unit
    wide: int  # as `columns`
    ends: Boundary  # the boundary at its end


def units(passages: Iterable[Passage], rules: CueConfig) -> list[Unit]:
    """Return all words of the passages as units. The words of a phrase are one unit if they fit on a line and have no
    pause between them.

    Start times that do not rise are moved later.
    """
    single = list(_rising(_single(passages)))
    found = [_merged(group) for run in _runs(single, rules) for group in _groups(run, rules)]
    if rules.speaker_style is SpeakerStyle.NAME:
        speakers = ["", *(unit.speaker for unit in found)]
        for i, (before, unit) in enumerate(zip(speakers, found, strict=False)):
            if unit.speaker not in ("", before):
                columns, wide = measure(named(unit.speaker, unit.text))
                found[i] = replace(unit, columns=columns, wide=wide)
    return found


def _single(passages: Iterable[Passage]) -> Iterator[Unit]:
    """Yield each word as a unit. A space in an unspaced script counts as the end of a clause."""
    last: Unit | None = None
    for passage in passages:
        gaps = words.gaps(passage.text, [word.text for word in passage.words])
        for i, (word, gap) in enumerate(zip(passage.words, gaps, strict=True)):
            text = _BREAKABLE_SPACE.sub(" ", " ".join(text_lines(word.text)))
            if not text:  # nothing but control characters
                continue
            spaced = bool(last and (gap if i else joint(last.text, text)))
            if last:
                pause = spaced and last.ends is Boundary.NONE and is_unspaced(last.text[-1])
                yield replace(last, ends=Boundary.CLAUSE) if pause else last
            last = Unit(
                text, word.start_ms, word.end_ms, spaced, passage.speaker, *measure(text), ends=boundary_after(text)
            )
    if last:
        yield last


def _rising(single: Iterable[Unit]) -> Iterator[Unit]:
    """Yield the units with rising start times: speakers may overlap, but cues may not."""
    least = 0
    for unit in single:
        start = max(unit.start_ms, least)
        yield (
            unit
            if start == unit.start_ms < unit.end_ms
            else replace(unit, start_ms=start, end_ms=max(unit.end_ms, start + 1))
        )
        least = start + 1


def _runs(single: Sequence[Unit], rules: CueConfig) -> Iterator[list[Unit]]:
    """Yield the longest runs of one speaker's words without space, punctuation or pause between them."""
    run: list[Unit] = []
    for unit in single:
        if run and (unit.spaced or unit.speaker != run[-1].speaker or _separated(run[-1], unit, rules)):
            yield run
            run = []
        run.append(unit)
    if run:
        yield run


def _separated(before: Unit, unit: Unit, rules: CueConfig) -> bool:
    silence = unit.start_ms - before.end_ms
    return before.ends > Boundary.NONE or (silence > 0 and silence >= rules.pause_ms)


def _groups(run: Sequence[Unit], rules: CueConfig) -> Iterator[list[Unit]]:
    """Yield the run divided at the ends of phrases, and where a line or cue would become too long."""
    if len(run) == 1:
        yield list(run)
        return
    ends = words.phrase_ends("".join(unit.text for unit in run))
    group: list[Unit] = []
    offset = 0
    for unit in run:
        if group and (
            offset in ends
            or sum(u.columns for u in group) + unit.columns > rules.max_line_columns
            or unit.end_ms - group[0].start_ms > rules.max_duration_ms
        ):
            yield group
            group = []
        group.append(unit)
        offset += len(unit.text)
    yield group


def _merged(group: Sequence[Unit]) -> Unit:
    if len(group) == 1:
        return group[0]
    first, last = group[0], group[-1]
    text = "".join(unit.text for unit in group)
    return Unit(text, first.start_ms, last.end_ms, first.spaced, first.speaker, *measure(text), ends=last.ends)


_MOST_BALANCED = 16  # lines; balancing takes quadratic time
# The cost of a line break, in squared columns of unevenness. Chosen by eye.
_BREAK = {Boundary.TIED: 400.0, Boundary.NONE: 100.0, Boundary.CLAUSE: 25.0, Boundary.SENTENCE: 0.0}


def relayout(text: str, rules: CueConfig, speaker: str = "") -> str:
    """Return `text`, such as a translation, in balanced lines: more than `max_lines` if it does not fit into them.

    `speaker`: the name that will be shown before the text.
    """
    # The words follow each other without a pause.
    spoken = [Word(word, at, at + 1, TimeSource.ESTIMATED) for at, word in enumerate(words.split(text))]
    return lines(units([Passage(text, spoken, speaker)], rules), rules)


def lines(units: Sequence[Unit], rules: CueConfig) -> str:
    """Return the units as lines with "\n" between them, none wider than the limit, except for single units that are
    wider."""
    breaks = _breaks(units, rules.max_line_columns) if units else []
    starts = [0, *breaks]
    return "\n".join(_line_text(units[a:b]) for a, b in zip(starts, [*breaks, len(units)], strict=True))


def _line_text(line: Sequence[Unit]) -> str:
    return "".join(f" {unit.text}" if i and unit.spaced else unit.text for i, unit in enumerate(line))


def _breaks(units: Sequence[Unit], limit: int) -> list[int]:
    """Return the units with which the second and later lines begin."""
    upto = [0, *accumulate(unit.columns + unit.spaced for unit in units)]

    def width(first: int, last: int) -> int:
        return upto[last] - upto[first] - units[first].spaced

    count = len(units)
    if width(0, count) <= limit or count == 1:
        return []
    filled = [0]  # the units that begin lines if each line is filled as far as possible, which needs the fewest lines
    for end in range(2, count + 1):
        if width(filled[-1], end) > limit:
            filled.append(end - 1)
    filled = filled[1:]
    total = len(filled) + 1
    if total > _MOST_BALANCED:
        return filled
    ideal = width(0, count) / total
    layer: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # for each end of the lines so far: cost and line ends
    for line in range(1, total + 1):
        grown: dict[int, tuple[float, list[int]]] = {}
        first = 0  # the first unit with which a line that ends at `end` can begin
        for end in range(line, count - (total - line) + 1) if line < total else [count]:
            break_cost = _BREAK[units[end - 1].ends] if end < count else 0.0
            while first < end - 1 and width(first, end) > limit:
                first += 1
            choices = [
                (layer[start][0] + break_cost + (width(start, end) - ideal) ** 2, [*layer[start][1], end])
                for start in range(first, end)
                if start in layer
            ]
            if choices:
                grown[end] = min(choices)
        layer = grown
    return layer[count][1][:-1]


# Costs, chosen by eye; only their order matters to the rules above. A boundary inside a clause costs 30.
_CUE = 15.0
# Reduced by a pause, in proportion to its length.
_BOUNDARY_COST = {Boundary.TIED: 60.0, Boundary.NONE: 30.0, Boundary.CLAUSE: 10.0, Boundary.SENTENCE: 0.0}
_INNER_SENTENCE = 8.0
_INNER_PAUSE = 40.0
_FULL = 10.0  # of a cue that uses all columns; squared, so that cues are filled evenly
_SHORT = 1000.0  # and 1 for each missing millisecond
_FAST_MS = 0.03  # for each millisecond that is missing for reading

_DASH = "- "
_NEVER_MS = 1 << 62  # the end of a recording of unknown length


def cues(passages: Iterable[Passage], rules: CueConfig, over_ms: int = _NEVER_MS) -> list[Cue]:
    """Return the passages, in order of time, as cues that follow `rules` as far as possible (see above).

    `over_ms`: the end of the recording.
    """
    spoken = units(passages, rules)
    table = CostTable(spoken, rules, over_ms)
    boundaries = table.cheapest()
    has_names = rules.speaker_style is SpeakerStyle.NAME
    return [
        Cue(
            spoken[first].start_ms,
            table.end_ms(first, last),
            _text(spoken[first:last], rules),
            speaker=spoken[first].speaker if has_names else "",
        )
        for first, last in pairwise(boundaries)
    ]


def _text(spoken: Sequence[Unit], rules: CueConfig) -> str:
    """Return the lines of a cue, with dashes if it has two speakers."""
    turns = [list(turn) for _, turn in groupby(spoken, key=lambda unit: unit.speaker)]
    return lines(spoken, rules) if len(turns) == 1 else "\n".join(f"{_DASH}{lines(turn, rules)}" for turn in turns)


class CostTable:
    """Prefix sums over the units, which give the cost of any cue in constant time."""

    def __init__(self, spoken: Sequence[Unit], rules: CueConfig, over_ms: int = _NEVER_MS) -> None:
        self._units, self._rules = spoken, rules
        self._over_ms = max([over_ms, *(unit.end_ms for unit in spoken[-1:])])
        # Nothing begins after the last cue, so it needs no gap.
        self._start = [*(unit.start_ms for unit in spoken), self._over_ms + rules.min_gap_ms]
        self._end = [unit.end_ms for unit in spoken]
        # Columns and reading time up to each unit. `..._before` includes the space before the unit: a cue that begins
        # with the unit does not show that space.
        self._columns = [0, *accumulate(unit.columns + unit.spaced for unit in spoken)]
        self.reading = [0.0, *accumulate(rules.reading_ms(u.columns + u.spaced, u.wide) for u in spoken)]
        self._columns_before = [c + unit.spaced for c, unit in zip(self._columns, spoken, strict=False)]
        space_ms = rules.reading_ms(1, 0)
        self.reading_before = [r + space_ms * unit.spaced for r, unit in zip(self.reading, spoken, strict=False)]
        # The cost of a boundary after each unit, and the sum of the costs of no boundary up to each unit.
        self._boundary, self._inner = [], [0.0]
        for unit, after in pairwise(spoken):
            boundary, inner = _boundary_costs(unit, after.start_ms - unit.end_ms, rules)
            if unit.speaker != after.speaker:  # it costs no more to end a cue there than after a sentence
                boundary, inner = 0.0, max(inner, _INNER_SENTENCE)
            self._boundary.append(boundary)
            self._inner.append(self._inner[-1] + inner)
        self._boundary.append(0.0)
        self._same_speaker = self._furthest(lambda i, j: spoken[i].speaker == spoken[j - 1].speaker)
        self._dashes_ms = rules.reading_ms(2 * len(_DASH), 0)

    def cheapest(self) -> list[int]:
        """Return the index of the first unit of each cue in the division of least cost, then the number of units."""
        count = len(self._units)
        best, begin = [0.0] + [math.inf] * count, [0] * (count + 1)
        for first, limit in enumerate(self.limits()):
            for last, cost in enumerate(self.costs(first, limit), start=first + 1):
                if best[first] + cost < best[last]:
                    best[last], begin[last] = best[first] + cost, first
        boundaries = [count]
        while boundaries[-1]:
            boundaries.append(begin[boundaries[-1]])
        return boundaries[::-1]

    def end_ms(self, first: int, last: int) -> int:
        """Return when a cue of units [first, last) ends: after its speech and its reading time, within the limits."""
        reading = self.reading[last] - self.reading_before[first]
        reading += self._dashes_ms if last > self._same_speaker[first] else 0.0
        needed = max(self._rules.min_duration_ms, reading)
        wanted = max(self._end[last - 1], self._start[first] + math.ceil(needed))
        return min(wanted, self._start[first] + self.longest_ms(first, last), self._over_ms)

    def longest_ms(self, first: int, last: int) -> int:
        """Return how long a cue of units [first, last) may last."""
        until_next = self._start[last] - self._start[first]
        return _longest_ms(until_next, self._rules.min_gap_ms, self._rules.max_duration_ms)

    def costs(self, first: int, limit: int) -> Iterator[float]:
        """Yield the cost of the cue from `first` to each end up to `limit`, including the boundary after it. This is
        the inner loop."""
        least, per_column = self._rules.min_duration_ms, 1 / (self._rules.max_lines * self._rules.max_line_columns)
        columns, reading, inner = self._columns_before[first], self.reading_before[first], self._inner[first]
        gap, longest, start = self._rules.min_gap_ms, self._rules.max_duration_ms, self._start[first]
        with_dashes = self._same_speaker[first] + 1
        for last in range(first + 1, limit + 1):
            if last == with_dashes:
                reading -= self._dashes_ms
            shown = _longest_ms(self._start[last] - start, gap, longest)
            fill = (self._columns[last] - columns) * per_column
            cost = _CUE + _FULL * fill * fill + self._boundary[last - 1] + self._inner[last - 1] - inner
            if shown < least:
                yield cost + _SHORT + least - shown
            else:
                lack = self.reading[last] - reading - shown
                yield cost + _FAST_MS * lack if lack > 0 else cost

    def limits(self) -> list[int]:
        """Return for each unit the end of the longest cue that may begin with it: by speaker, lines and duration."""
        count, rules = len(self._units), self._rules
        dashes = rules.speaker_style is SpeakerStyle.DASH and rules.max_lines > 1
        line_ends = [
            *self._furthest(lambda i, j: self._columns[j] - self._columns_before[i] <= rules.max_line_columns),
            count,
        ]
        in_time = self._furthest(lambda i, j: self._end[j - 1] - self._start[i] <= rules.max_duration_ms)
        limits = []
        for first in range(count):
            full = first
            for _ in range(rules.max_lines):
                full = line_ends[full]
            change = self._same_speaker[first]
            limit = min(full, change, in_time[first])
            limits.append(max(limit, min(self._end_of_dialogue(first, change), in_time[first])) if dashes else limit)
        return limits

    def _end_of_dialogue(self, first: int, change: int) -> int:
        """Return the end of the longest cue of two speakers, a line each, that begins with `first`; 0 for none. The
        second speaker begins with unit `change`."""
        room = self._rules.max_line_columns - len(_DASH)
        if change == len(self._units) or self._columns[change] - self._columns_before[first] > room:
            return 0
        end = change
        while end < self._same_speaker[change] and self._columns[end + 1] - self._columns_before[change] <= room:
            end += 1
        return end

    def _furthest(self, fits: Callable[[int, int], bool]) -> list[int]:
        """Return for each unit the furthest end up to which all runs from it fit; a single unit always fits."""
        count, ends, end = len(self._units), [], 0
        for first in range(count):
            end = max(end, first + 1)
            while end < count and fits(first, end + 1):
                end += 1
            ends.append(end)
        return ends


def _longest_ms(until_next_ms: int, gap_ms: int, longest_ms: int) -> int:
    """Return how long a cue may last if the next begins `until_next_ms` after its beginning."""
    if until_next_ms > 2 * gap_ms:
        until_next_ms -= gap_ms
    return until_next_ms if until_next_ms < longest_ms else longest_ms


def _boundary_costs(unit: Unit, silence_ms: int, rules: CueConfig) -> tuple[float, float]:
    """Return the cost of a boundary after `unit`, and the cost of no boundary, if `silence_ms` follow the unit."""
    if silence_ms >= rules.pause_ms:
        return 0.0, _INNER_PAUSE
    cost = _BOUNDARY_COST[unit.ends]
    if silence_ms > 0:  # words may overlap, and `pause_ms` may be 0
        cost *= 1 - silence_ms / rules.pause_ms
    return cost, _INNER_SENTENCE if unit.ends is Boundary.SENTENCE else 0.0
