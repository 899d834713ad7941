"""The patience with a worker that does not move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.gateway.hang_detector import HangConfig, HangDetector, ProbeResult

RULES = HangConfig(hang_s=20.0, load_s=300.0, look_s=8.0)
STILL = [ProbeResult.HUNG, ProbeResult.SILENT]
LOOKS = st.lists(
    st.tuples(st.sampled_from(ProbeResult), st.integers(1, 80).map(lambda tenths: tenths / 10)), max_size=80
)


def _killed_after(vigil, sign, every_s=2.0, begin_s=0.0):
    now_s = begin_s
    while True:
        now_s += every_s
        if vigil.sees(sign, now_s):
            return now_s - begin_s


def _seen(sign):
    vigil = HangDetector(RULES, -1.0)
    vigil.sees(sign, 0.0)
    return vigil


@pytest.mark.parametrize("sign", STILL)
def test_one_that_was_well_is_ended_after_the_bound(sign):
    """Hung or silent: not before, and not long after."""
    assert _killed_after(_seen(ProbeResult.WELL), sign) == RULES.hang_s


@pytest.mark.parametrize(
    "vigil", [HangDetector(RULES, 0.0), _seen(ProbeResult.LOADING)], ids=["never seen", "seen loading"]
)
def test_one_that_may_be_loading_may_be_silent_for_as_long_as_a_load(vigil):
    """Importing libraries can hold all of a process up."""
    assert _killed_after(vigil, ProbeResult.SILENT) == RULES.load_s


def test_one_that_says_it_hangs_is_not_loading():
    """A load says that it is none."""
    assert _killed_after(_seen(ProbeResult.LOADING), ProbeResult.HUNG) == RULES.hang_s


@pytest.mark.parametrize("sign", STILL)
def test_a_pause_of_the_gateway_itself_is_not_held_against_the_worker(sign):
    """A frozen container wakes up as a whole: one look after an hour is one look."""
    vigil = _seen(ProbeResult.WELL)
    assert not vigil.sees(sign, 3_600.0)
    assert _killed_after(vigil, sign, begin_s=3_600.0) == RULES.hang_s - RULES.look_s


@given(LOOKS)
def test_nobody_is_ended_before_the_bound_has_passed_without_a_good_sign(looks):
    """And everybody is who has shown none for so long, but for those that may load."""
    vigil, now_s, still_s, loading = HangDetector(RULES, 0.0), 0.0, 0.0, True
    for sign, pause_s in looks:
        now_s += pause_s
        ended = vigil.sees(sign, now_s)
        good = sign not in STILL
        still_s = 0.0 if good else still_s + pause_s
        loading = sign is ProbeResult.LOADING if good else loading
        bound_s = RULES.load_s if loading and sign is ProbeResult.SILENT else RULES.hang_s
        if abs(still_s - bound_s) > 1e-6:
            assert ended == (still_s > bound_s)
