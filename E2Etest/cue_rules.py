"""Checks finished cues against the limits of a `CueConfig`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from asr_server.subtitle.cues import Cue, CueConfig, text_lines
from asr_server.text.scripts import is_unspaced
from asr_server.text.words import CLOSING, GLUED, OPENING, measure


class LintRule(StrEnum):
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


class Violation(NamedTuple):
    """A rule that a cue breaks. `cue`: its number, from 1."""

    rule: LintRule
    cue: int


def check(cues: Sequence[Cue], rules: CueConfig) -> list[Violation]:
    """Return every violation, in order of cues. The lines of text and translation are checked separately.

    Unavoidable violations are reported too: a single word that is wider than a line, or speech too fast to read.
    """
    broken = [Violation(rule, number) for number, cue in enumerate(cues, start=1) for rule in _alone(cue, rules)]
    pairs = enumerate(pairwise(cues), start=2)
    broken += [Violation(rule, number) for number, pair in pairs for rule in _pair(*pair, rules)]
    return sorted(broken, key=lambda found: found.cue)


def _alone(cue: Cue, rules: CueConfig) -> Iterator[LintRule]:
    duration_ms = cue.end_ms - cue.start_ms
    if duration_ms < rules.min_duration_ms:
        yield LintRule.MIN_DURATION
    if duration_ms > rules.max_duration_ms:
        yield LintRule.MAX_DURATION
    if not cue.lines:
        yield LintRule.EMPTY
    for text in (cue.text, cue.translation):
        lines = text_lines(text)
        if len(lines) > rules.max_lines:
            yield LintRule.LINES
        if any(measure(line).columns > rules.max_line_columns for line in lines):
            yield LintRule.LINE_WIDTH
        if any(line[0] in CLOSING + GLUED for line in lines[1:]):
            yield LintRule.LINE_START
        if any(map(_opens, lines[:-1])):
            yield LintRule.LINE_END
        if sum(rules.reading_ms(*measure(line)) for line in lines) > max(duration_ms, 0):
            yield LintRule.READING_SPEED


def _opens(line: str) -> bool:
    return line[-1] in OPENING and (len(line) == 1 or line[-2] == " " or is_unspaced(line[-2]))


def _pair(before: Cue, cue: Cue, rules: CueConfig) -> Iterator[LintRule]:
    gap_ms = cue.start_ms - before.end_ms
    if cue.start_ms < before.start_ms:
        yield LintRule.ORDER
    if gap_ms < 0:
        yield LintRule.OVERLAP
    elif gap_ms < rules.min_gap_ms:
        yield LintRule.MIN_GAP
