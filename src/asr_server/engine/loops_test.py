"""Loop detection on ids."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine import loops

UNITS = st.lists(st.integers(0, 99), min_size=1, max_size=40)


@given(st.lists(st.integers(100, 199), max_size=30), UNITS)
def test_every_loop_is_found_and_one_turn_is_kept(start, unit):
    """Whatever came before, enough turns of a unit are a loop; what is kept ends within its first two turns."""
    turns = max(6, -(-48 // len(unit))) + 1
    ids = start + unit * turns
    found = loops.loop(ids)
    assert found
    assert len(unit) % found == 0
    keep = loops.without_loop(ids, found)
    assert ids[: len(start)] == ids[:keep][: len(start)]
    assert len(start) < keep <= len(start) + 2 * len(unit)


@given(st.lists(st.integers(0, 1000), max_size=200, unique=True))
def test_text_that_does_not_repeat_is_no_loop(ids):
    """Distinct tokens never make one."""
    assert loops.loop(ids) == 0


def test_what_people_say_is_no_loop():
    """Forty times the same token, or five times the same sentence, may be speech."""
    assert loops.loop([5] * 40) == 0
    assert loops.loop(list(range(30)) * 5) == 0
