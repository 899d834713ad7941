"""The patience with a process that does not move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.processes.supervisor import HangConfig, HangDetector, ProbeResult

RULES = HangConfig(hang_s=20.0, load_s=300.0, probe_s=8.0)
STALLED = [ProbeResult.HUNG, ProbeResult.SILENT]
PROBES = st.lists(
    st.tuples(st.sampled_from(ProbeResult), st.integers(1, 80).map(lambda tenths: tenths / 10)), max_size=80
)


def _killed_after(detector, probe, every_s=2.0, begin_s=0.0):
    now_s = begin_s
    while True:
        now_s += every_s
        if detector.observe(probe, now_s):
            return now_s - begin_s


def _seen(probe):
    detector = HangDetector(RULES, -1.0)
    detector.observe(probe, 0.0)
    return detector


@pytest.mark.parametrize("probe", STALLED)
def test_one_that_was_well_is_ended_after_the_bound(probe):
    """Hung or silent: not before, and not long after."""
    assert _killed_after(_seen(ProbeResult.HEALTHY), probe) == RULES.hang_s


@pytest.mark.parametrize(
    "detector", [HangDetector(RULES, 0.0), _seen(ProbeResult.LOADING)], ids=["never seen", "seen loading"]
)
def test_one_that_may_be_loading_may_be_silent_for_as_long_as_a_load(detector):
    """Importing libraries can hold all of a process up."""
    assert _killed_after(detector, ProbeResult.SILENT) == RULES.load_s


def test_one_that_says_it_hangs_is_not_loading():
    """A load says that it is none."""
    assert _killed_after(_seen(ProbeResult.LOADING), ProbeResult.HUNG) == RULES.hang_s


@pytest.mark.parametrize("before", [ProbeResult.HEALTHY, ProbeResult.LOADING])
def test_one_that_is_stopped_is_not_loading(before):
    """However long it was silent before: a short pause during a long load is no hang."""
    detector = _seen(before)
    detector.observe(ProbeResult.SILENT, 8.0)
    assert _killed_after(detector, ProbeResult.STOPPED, begin_s=8.0) == RULES.hang_s


@pytest.mark.parametrize("probe", STALLED)
def test_a_pause_of_the_parent_is_not_held_against_the_process(probe):
    """A frozen container wakes up as a whole: one look after an hour is one look."""
    detector = _seen(ProbeResult.HEALTHY)
    assert not detector.observe(probe, 3_600.0)
    assert _killed_after(detector, probe, begin_s=3_600.0) == RULES.hang_s - RULES.probe_s


@given(PROBES)
def test_nobody_is_ended_before_the_bound_has_passed_without_a_good_sign(probes):
    """And everybody is who has shown none for so long, but for those that may load."""
    detector, now_s, stalled_s, stopped_s, loading = HangDetector(RULES, 0.0), 0.0, 0.0, 0.0, True
    for probe, pause_s in probes:
        now_s += pause_s
        ended = detector.observe(probe, now_s)
        stopped_s = stopped_s + pause_s if probe is ProbeResult.STOPPED else 0.0
        if probe is ProbeResult.STOPPED:
            assert abs(stopped_s - RULES.hang_s) < 1e-6 or ended == (stopped_s > RULES.hang_s)
            continue
        good = probe not in STALLED
        stalled_s = 0.0 if good else stalled_s + pause_s
        loading = probe is ProbeResult.LOADING if good else loading
        bound_s = RULES.load_s if loading and probe is ProbeResult.SILENT else RULES.hang_s
        if abs(stalled_s - bound_s) > 1e-6:
            assert ended == (stalled_s > bound_s)


def test_two_short_stops_are_no_long_one():
    """A process that was continued in between begins anew."""
    detector = _seen(ProbeResult.HEALTHY)
    for begin_s in (0.0, 20.0, 40.0):
        assert not any(detector.observe(ProbeResult.STOPPED, begin_s + after_s) for after_s in (5.0, 10.0, 15.0))
        assert not detector.observe(ProbeResult.HEALTHY, begin_s + 17.0)
