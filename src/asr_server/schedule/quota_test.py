"""Each caller's share."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.errors import Overloaded
from asr_server.schedule import quota as module
from asr_server.schedule.quota import Quota

# Not floats: libraries of the model's switch subnormal numbers off, which hypothesis takes for a fault.
WAITS_S = st.lists(st.integers(0, 30_000).map(lambda wait_ms: wait_ms / 1000), min_size=1, max_size=200)
RATES = st.integers(1, 120)


class Clock:
    """A time that is set."""

    now_s = 1_000.0

    def __call__(self):
        return self.now_s


def _goes(quota, caller="a"):
    """Return True if a request is let in, else the seconds to wait."""
    try:
        with quota.taken(caller):
            return True
    except Overloaded as refusal:
        return -refusal.retry_after_s


@given(RATES, WAITS_S)
def test_no_window_holds_more_than_a_full_bucket_and_what_flowed_in(rate, waits_s):
    """A stretch of time has at most a minute's worth at once, and then the rate."""
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


def test_a_refusal_costs_nothing():
    """A refusal by the limit at once spends no token, and a refusal for want of a token holds no place."""
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


class Session:
    """A live session of a caller as the server has it: over connections, and without one until it ends."""

    def __init__(self, quota, caller, name):
        self._quota, self._caller, self.name = quota, caller, name
        self.connections, self._kept = [], ExitStack()
        self.ended = False
        place = self.connect()
        self._kept.enter_context(place.kept(name, self.end))

    def connect(self):
        connection = ExitStack()
        place = connection.enter_context(self._quota.taken(self._caller, live=True, resumes=self.name))
        self.connections.append(connection)
        return place

    def cut(self):
        self.connections.pop(0).close()

    def end(self):
        self.ended = True
        self._kept.close()


def _refused(call):
    with pytest.raises(Overloaded) as refusal:
        call()
    return refusal.value.retry_after_s


def test_an_id_is_no_way_around_the_limit():
    """Many connections to one session need places of their own; and another caller's id is worth nothing."""
    quota = Quota(1, 0)
    session = Session(quota, "a", "1")
    for _ in range(module._MAX_CONNECTIONS - 1):
        session.connect()
    _refused(session.connect)
    with quota.taken("b", live=True, resumes="1"):
        assert _goes(quota, "b") == -1


@pytest.mark.parametrize(("limit", "alone"), [(1, 1), (2, 1), (8, 4), (256, 128)])
def test_one_caller_gets_half_of_all_live_sessions(limit, alone):
    """The other half is left for others; a request that is no session is not counted."""
    quota = Quota(0, 0, max_live=limit)
    with ExitStack() as open_ones:
        for _ in range(alone):
            open_ones.enter_context(quota.taken("a", live=True))
        assert 1 < _refused(lambda: open_ones.enter_context(quota.taken("a", live=True))) <= 60
        assert _goes(quota) is True
        if limit > 1:
            open_ones.enter_context(quota.taken("b", live=True))
    assert quota.live == 0
