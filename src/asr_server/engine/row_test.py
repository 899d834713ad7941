"""Answers in the making: the most tokens of one, and drafts, which only save steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.audio import s_to_samples
from asr_server.engine.loops import token_budget
from asr_server.engine.protocol import Finish
from asr_server.engine.row import MAX_PROPOSAL, Draft, Row, accepted

TOKENS = st.lists(st.integers(0, 6), max_size=40)


def test_the_budget_follows_the_audio():
    """40 tokens a second, never under 32: no constant that truncates long speech."""
    assert [token_budget(16_000 * seconds) for seconds in (0, 1, 10, 30)] == [32, 40, 400, 1200]


def test_a_runaway_that_repeats_itself_ends_long_before_the_budget():
    """After six turns or 48 tokens of a loop of any length, and at most eight more."""
    budget = token_budget(s_to_samples(30))
    for unit in range(1, 65):
        row = Row(key=0, budget=budget)
        while not row.finished:
            place = len(row.ids)
            row.note([place if place < 40 else 1_000 + (place - 40) % unit], [0.0], frozenset())
        assert row.finish is Finish.LOOP
        assert 0 <= len(row.ids) - 40 - max(48, 6 * unit) < 8
        assert len(row.ids) <= budget / 2.5


def _decode(answer, draft_ids):
    """Decode `answer` with a draft as the decoder does; the result and the number of forward passes."""
    draft, out, passes = Draft(draft_ids), [], 0
    while len(out) < len(answer):
        proposal = draft.proposal(MAX_PROPOSAL)
        chosen = answer[len(out) : len(out) + len(proposal) + 1]
        taken = chosen[: accepted(proposal, chosen) + 1]
        out += taken
        draft.follow(out, len(taken))
        passes += 1
    return out, passes


@given(TOKENS, TOKENS)
def test_no_draft_changes_the_answer_or_costs_a_pass(answer, draft):
    """Right, wrong, empty or too long: the answer is the same, in no more passes than without."""
    out, passes = _decode(answer, draft)
    assert out == answer
    assert passes <= max(1, len(answer))


D = list(range(100, 140))


@pytest.mark.parametrize(
    ("answer", "most"),
    [(D[:24], 2), ([*D[:10], 7, *D[11:]], 8), ([*D[:10], 7, *D[10:]], 8), ([*D[:10], *D[11:]], 8)],
    ids=["equal", "replaced", "inserted", "dropped"],
)
def test_what_is_right_of_a_draft_is_verified_and_not_decoded(answer, most):
    """After a changed word it takes a few plain steps, then there are proposals again."""
    assert _decode(answer, D[: max(24, len(answer))])[1] <= most
