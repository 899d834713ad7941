"""Groups of lines."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.translator.batches import batches


@given(st.lists(st.integers(0, 6000), max_size=60), st.integers(1, 20), st.sets(st.integers(0, 59)))
def test_every_line_is_in_one_batch_in_order_and_within_the_bounds(lengths, size, unwanted):
    """All wanted lines and no others; a group exceeds the characters only where it is one line."""
    texts = ["x" * n for n in lengths]
    wanted = [i for i in range(len(texts)) if i not in unwanted]
    groups = batches(texts, wanted, size)
    assert [i for group in groups for i in group] == wanted
    for group in groups:
        assert 1 <= len(group) <= size
        assert len(group) == 1 or sum(lengths[i] for i in group) <= 4000


def test_groups_are_as_large_as_they_may_be():
    """Forty short lines in tens are four prompts."""
    assert [len(g) for g in batches(["word"] * 40, range(40), 10)] == [10] * 4
