"""The number of rows that may decode together."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine.qwen_asr.engine import RowLimit


def test_the_limit_of_rows_halves_and_recovers():
    """Four rows decode at once after a shortage at eight, and eight again after many passes."""
    limit = RowLimit(8)
    limit.ran_out(8)
    assert limit.rows == 4
    for _ in range(500):
        limit.succeeded()
    assert limit.rows == 8


@given(st.integers(1, 64), st.lists(st.one_of(st.none(), st.integers(1, 64)), max_size=200))
def test_the_limit_of_rows_stays_between_one_and_the_plan(planned, events):
    """A failure never raises it, whatever happens."""
    limit = RowLimit(planned)
    for rows in events:
        before = limit.rows
        if rows is None:
            limit.succeeded()
            assert before <= limit.rows <= 2 * before
        else:
            limit.ran_out(min(rows, before))
            assert limit.rows < before or limit.rows == 1
        assert 1 <= limit.rows <= planned
