"""Drafts: proposals follow the answer, and only save steps."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine.draft import MAX_PROPOSAL, Draft, accepted

TOKENS = st.lists(st.integers(0, 6), max_size=40)


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


def test_a_right_draft_costs_a_pass_for_every_full_proposal():
    """An answer equal to its draft is verified, not decoded."""
    answer = list(range(24))
    assert _decode(answer, answer)[1] == 2


def test_after_a_changed_word_the_rest_is_verified_again():
    """With one token replaced, inserted or dropped there are a few plain steps, then proposals again."""
    draft = list(range(100, 140))
    for answer in (
        [*draft[:10], 7, *draft[11:]],
        [*draft[:10], 7, *draft[10:]],
        [*draft[:10], *draft[11:]],
    ):
        assert _decode(answer, draft)[1] <= 8


def test_an_answer_elsewhere_is_not_pestered_with_guesses():
    """Nothing is proposed while nothing matches."""
    draft = Draft([1, 2, 3])
    draft.follow([9], 1)
    assert draft.proposal(9) == []
