"""Checks finished cues against the limits of a `CueConfig`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter

from asr_server.subtitle.cues import Cue, CueConfig, text_lines
from asr_server.text.scripts import is_unspaced
from asr_server.text.words import CLOSING, GLUED, OPENING, measure


class LintRule(StrEnum):
    """The rules. Figures are ms for times, columns for widths and percent of the limit for reading speed; for
    `LINE_START` and `LINE_END` the number of the line.
    """

    EMPTY = "empty"
    ORDER = "order"
    OVERLAP = "overlap"
    MIN_GAP = "min_gap"
    MIN_DURATION = "min_duration"
    MAX_DURATION = "max_duration"
    LINES = "lines"
    LINE_WIDTH = "line_width"
    LINE_START = "line_start"
    LINE_END = "line_end"
    READING_SPEED = "reading_speed"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a cue breaks."""

    rule: LintRule
    cue: int  # its number, from 1
    figure: int  # in the unit of the rule
    limit: int  # in the unit of the rule

    def __str__(self) -> str:
        return f"cue {self.cue}: {self.rule} {self.figure} (limit {self.limit})"


def check(cues: Sequence[Cue], rules: CueConfig) -> list[Violation]:
    """Return every violation, in order of cues. The lines of text and translation are checked separately.

    Unavoidable violations are reported too: a single word that is wider than a line, or speech too fast to read.
    """
    broken = [(i, fault) for i, cue in enumerate(cues, start=1) for fault in _alone(cue, rules)]
    broken += [(i, fault) for i, pair in enumerate(pairwise(cues), start=2) for fault in _pair(*pair, rules)]
    return [Violation(rule, i, figure, limit) for i, (rule, figure, limit) in sorted(broken, key=itemgetter(0))]


def _alone(cue: Cue, rules: CueConfig) -> Iterator[tuple[LintRule, int, int]]:
    duration = cue.end_ms - cue.start_ms
    if duration < rules.min_duration_ms:
        yield LintRule.MIN_DURATION, duration, rules.min_duration_ms
    if duration > rules.max_duration_ms:
        yield LintRule.MAX_DURATION, duration, rules.max_duration_ms
    if not cue.lines:
        yield LintRule.EMPTY, 0, 1
    for text in (cue.text, cue.translation):
        yield from _layout(text_lines(text), rules)
        needed = sum(rules.reading_ms(*measure(line)) for line in text_lines(text))
        if needed > max(duration, 0):
            yield LintRule.READING_SPEED, round(100 * needed / max(duration, 1)), 100


def _layout(lines: Sequence[str], rules: CueConfig) -> Iterator[tuple[LintRule, int, int]]:
    if len(lines) > rules.max_lines:
        yield LintRule.LINES, len(lines), rules.max_lines
    for number, line in enumerate(lines, start=1):
        if measure(line).columns > rules.max_line_columns:
            yield LintRule.LINE_WIDTH, measure(line).columns, rules.max_line_columns
        if number > 1 and line[0] in CLOSING + GLUED:
            yield LintRule.LINE_START, number, 0
        if number < len(lines) and _opens(line):
            yield LintRule.LINE_END, number, 0


def _opens(line: str) -> bool:
    return line[-1] in OPENING and (len(line) == 1 or line[-2] == " " or is_unspaced(line[-2]))


def _pair(before: Cue, cue: Cue, rules: CueConfig) -> Iterator[tuple[LintRule, int, int]]:
    gap = cue.start_ms - before.end_ms
    if cue.start_ms < before.start_ms:
        yield LintRule.ORDER, cue.start_ms - before.start_ms, 0
    if gap < 0:
        yield LintRule.OVERLAP, -gap, 0
    elif gap < rules.min_gap_ms:
        yield LintRule.MIN_GAP, gap, rules.min_gap_ms
