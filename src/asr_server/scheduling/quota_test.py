"""Each caller's share."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.errors import Overloaded
from asr_server.scheduling import quota as module
from asr_server.scheduling.quota import Quota

# Not floats: libraries of the model's switch subnormal numbers off, which hypothesis takes for a fault.
WAITS_S = st.lists(st.integers(0, 30_000).map(lambda wait_ms: wait_ms / 1000), min_size=1, max_size=200)
RATES = st.integers(1, 120)


class Clock:
    """A time that is set."""

    now_s = 1_000.0

    def __call__(self):
        return self.now_s


def _goes(quota, caller="a"):
    """Whether a request is let in; else the seconds to wait."""
    try:
        with quota.taken(caller):
            return True
    except Overloaded as refusal:
        return -refusal.retry_after_s


@given(RATES, WAITS_S)
def test_no_window_holds_more_than_a_full_bucket_and_what_flowed_in(rate, waits_s):
    """Over any stretch of time: a minute's worth at once, and then the rate."""
    clock = Clock()
    quota, let_in = Quota(0, rate, clock), []
    for wait_s in waits_s:
        clock.now_s += wait_s
        if _goes(quota) is True:
            let_in.append(clock.now_s)
    for first, start_s in enumerate(let_in):
        for last in range(first, len(let_in)):
            assert last - first + 1 <= rate + (let_in[last] - start_s) * rate / 60 + 0.01


@given(RATES, WAITS_S)
def test_who_keeps_to_the_rate_is_never_refused(rate, waits_s):
    """However long the pauses are, if each is at least a minute over the rate."""
    clock = Clock()
    quota = Quota(0, rate, clock)
    for wait_s in waits_s:
        clock.now_s += 60 / rate + wait_s
        assert _goes(quota) is True


@given(RATES, st.integers(0, 300))
def test_who_waits_as_told_gets_in(rate, before):
    """`Retry-After` is true, and within what clients honour."""
    clock = Clock()
    quota = Quota(0, rate, clock)
    told = [_goes(quota) for _ in range(before + rate + 1)][-1]
    assert -60 <= told <= -1
    clock.now_s += -told
    assert _goes(quota) is True


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=60))
def test_never_more_at_once_and_every_place_comes_back(at_once, moves):
    """Requests begin and end in any order; one over the limit is refused, and none is lost."""
    quota, open_ones = Quota(at_once, 0), []
    for begins in moves:
        if begins:
            stack = ExitStack()
            try:
                stack.enter_context(quota.taken("a"))
                open_ones.append(stack)
            except Overloaded:
                assert len(open_ones) == at_once
            assert len(open_ones) <= at_once
        elif open_ones:
            open_ones.pop(0).close()
    for stack in open_ones:
        stack.close()
    with ExitStack() as all_places:
        for _ in range(at_once):
            all_places.enter_context(quota.taken("a"))


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_callers_do_not_touch_each_other(callers):
    """Each gets its own share, whatever the others do."""
    quota, counts = Quota(0, 5, Clock()), dict.fromkeys("abc", 0)
    for caller in callers:
        counts[caller] += 1
        assert (_goes(quota, caller) is True) == (counts[caller] <= 5)


def test_a_refusal_costs_nothing():
    """Over the limit at once, no token is spent; without a token, no place is held."""
    clock = Clock()
    quota = Quota(1, 2, clock)
    with quota.taken("a"):
        assert [_goes(quota) for _ in range(3)] == [-1] * 3
    assert _goes(quota) is True
    assert _goes(quota) == -30
    clock.now_s += 30
    assert _goes(quota) is True


def test_a_request_that_fails_gives_its_place_back():
    """An error inside is no reason to hold it."""
    quota = Quota(1, 0)
    with pytest.raises(ZeroDivisionError), quota.taken("a"):
        1 / 0  # noqa: B018  # the error is the point
    assert _goes(quota) is True


def test_memory_is_bounded_and_work_under_way_is_never_forgotten(monkeypatch):
    """A stream of strange callers pushes out the idle ones only."""
    monkeypatch.setattr(module, "_MAX_CALLERS", 100)
    quota = Quota(1, 10, Clock())
    with quota.taken("busy"):
        for number in range(1_000):
            assert _goes(quota, str(number)) is True
        assert len(quota) == 100
        assert _goes(quota, "busy") == -1


def test_without_limits_nobody_is_refused():
    """0 is off."""
    quota = Quota(0, 0)
    with ExitStack() as places:
        for _ in range(1_000):
            places.enter_context(quota.taken("a", live=True))
