"""Faults of finished cues."""

import pytest

from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.subtitle.lint import LintRule, Violation, check

RULES = CueConfig()
GOOD = [Cue(0, 1000, "one"), Cue(1083, 3000, "two\nthree", "zwei\ndrei")]


def test_good_cues_have_no_fault():
    """Limits themselves are allowed; a translation has lines of its own."""
    assert check(GOOD, RULES) == []
    assert check([Cue(0, 7000, "x" * 42), Cue(7083, 7916, "y")], RULES) == []


def test_each_fault_is_named_with_its_cue_and_figure():
    """A fault is one line of the report."""
    cases = [
        (Cue(4000, 4832, "x"), Violation(LintRule.MIN_DURATION, 3, 832, 833)),
        (Cue(4000, 11_001, "x"), Violation(LintRule.MAX_DURATION, 3, 7001, 7000)),
        (Cue(3082, 5000, "x"), Violation(LintRule.MIN_GAP, 3, 82, 83)),
        (Cue(2999, 5000, "x"), Violation(LintRule.OVERLAP, 3, 1, 0)),
        (Cue(4000, 6000, "a\nb\nc"), Violation(LintRule.LINES, 3, 3, 2)),
        (Cue(4000, 6000, "a", "a\nb\nc"), Violation(LintRule.LINES, 3, 3, 2)),
        (Cue(4000, 9000, "x" * 43), Violation(LintRule.LINE_WIDTH, 3, 43, 42)),
        (Cue(4000, 9000, "好" * 22), Violation(LintRule.LINE_WIDTH, 3, 44, 42)),
        (Cue(4000, 6000, "好\n。"), Violation(LintRule.LINE_START, 3, 2, 0)),
        (Cue(4000, 6000, "好「\n好"), Violation(LintRule.LINE_END, 3, 1, 0)),
        (Cue(4000, 5000, "x" * 30), Violation(LintRule.READING_SPEED, 3, 150, 100)),
        (Cue(4000, 5000, "好" * 18), Violation(LintRule.READING_SPEED, 3, 200, 100)),
        (Cue(4000, 5000, "x", "x" * 30), Violation(LintRule.READING_SPEED, 3, 150, 100)),
        (Cue(4000, 5000, " \n"), Violation(LintRule.EMPTY, 3, 0, 1)),
    ]
    for cue, fault in cases:
        assert check([*GOOD, cue], RULES) == [fault], (cue, fault)


def test_faults_come_in_the_order_of_their_cues_and_then_of_the_rules():
    """Those of a cue by itself before those with the one before it."""
    cues = [Cue(0, 800, "x"), Cue(850, 1_500, "x"), Cue(2_000, 2_500, "")]
    found = [(fault.cue, fault.rule) for fault in check(cues, RULES)]
    short = LintRule.MIN_DURATION
    assert found == [(1, short), (2, short), (2, LintRule.MIN_GAP), (3, short), (3, LintRule.EMPTY)]


@pytest.mark.parametrize("line", ["he said (", "(", "你（"])
def test_a_line_does_not_end_with_what_opens(line):
    """Behind a space, alone, or in a script without spaces."""
    assert [fault.rule for fault in check([Cue(0, 3000, f"{line}\nx)")], RULES)] == [LintRule.LINE_END]


def test_cues_out_of_order_are_found():
    """The later one is named."""
    assert Violation(LintRule.ORDER, 3, -83, 0) in check([*GOOD, Cue(1000, 1900, "x")], RULES)


def test_a_closing_quote_that_others_open_with_is_no_fault():
    """German closes with what English opens with."""
    assert check([Cue(0, 2000, "„Hallo“\nsagte er")], RULES) == []


def test_a_fault_reads_as_a_sentence():
    """The sentence is for people at a terminal."""
    assert str(Violation(LintRule.MIN_GAP, 3, 82, 83)) == "cue 3: min_gap 82 (limit 83)"


def test_rules_that_no_cue_can_follow_are_refused():
    """The rules are refused before they make cues."""
    cases = [
        {"min_duration_ms": 8000},
        {"min_duration_ms": 0},
        {"min_gap_ms": -1},
        {"max_line_columns": 1},
        {"max_lines": 0},
        {"reading_speed": 0},
    ]
    for wrong in cases:
        with pytest.raises(ValueError, match=r"must|cannot|needs"):
            CueConfig(**wrong)
