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


def test_a_session_without_a_connection_keeps_its_place_until_its_caller_needs_it():
    """The session that was left first ends first, for a request or another session."""
    quota = Quota(2, 0)
    first, second = Session(quota, "a", "1"), Session(quota, "a", "2")
    assert _goes(quota) == -1
    second.cut()
    first.cut()
    assert _goes(quota) is True
    assert (first.ended, second.ended) == (False, True)
    third = Session(quota, "a", "3")
    Session(quota, "a", "4")
    assert (first.ended, third.ended) == (True, False)


def _refused_or(call):
    try:
        return call()
    except Overloaded:
        return None


def test_nobody_elses_session_ends_for_a_caller():
    """A caller without a place of its own to give is refused, however many others wait for their clients."""
    quota = Quota(1, 0, max_live=3)
    waiting = [Session(quota, caller, caller) for caller in "ab"]
    for session in waiting:
        session.cut()
    Session(quota, "c", "c")
    _refused(lambda: Session(quota, "d", "d"))
    _refused(lambda: Session(quota, "c", "c2"))
    assert not any(session.ended for session in waiting)


def test_a_resumed_session_is_counted_once():
    """The session's connections share its place, also while a broken one is still open; it does not end for its own
    client."""
    quota = Quota(1, 0, max_live=2)
    session = Session(quota, "a", "1")
    session.connect()  # the first connection is broken, which nobody has noticed
    assert quota.live == 1
    session.cut()
    session.cut()
    session.connect()
    assert not session.ended
    assert _goes(quota) == -1
    session.end()
    session.cut()
    assert _goes(quota) is True
    assert quota.live == 0


def test_an_id_is_no_way_around_the_limit():
    """Many connections to one session need places of their own; and another caller's id is worth nothing."""
    quota = Quota(1, 0)
    session = Session(quota, "a", "1")
    for _ in range(module._MAX_CONNECTIONS - 1):
        session.connect()
    _refused(session.connect)
    with quota.taken("b", live=True, resumes="1"):
        assert _goes(quota, "b") == -1


@given(st.lists(st.sampled_from(["open", "cut", "resume", "end", "ask"]), max_size=80), st.integers(1, 4))
def test_places_are_never_more_than_allowed_and_all_come_back(moves, at_once):
    """Whatever a caller does with its sessions, in any order."""
    quota, sessions = Quota(at_once, 0, max_live=6), []
    for number, move in enumerate(moves):
        sessions = [session for session in sessions if not session.ended]
        connected = [session for session in sessions if session.connections]
        if move == "open" and (opened := _refused_or(lambda: Session(quota, "a", str(number)))):  # noqa: B023
            sessions.append(opened)
        elif move == "cut" and connected:
            connected[0].cut()
        elif move == "resume" and sessions:
            _refused_or(sessions[-1].connect)
        elif move == "end" and sessions and not sessions[0].connections:
            sessions[0].end()
        elif move == "ask":
            _goes(quota)
        sessions = [session for session in sessions if not session.ended]
        assert len(sessions) <= quota.live <= min(at_once, 3)
    for session in sessions:
        session.end()
        while session.connections:
            session.cut()
    assert quota.live == 0
    assert [_goes(quota) for _ in range(2)] == [True, True]


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


def test_who_is_at_the_limit_of_sessions_can_replace_one_that_waits():
    """One is replaced for one, also when others have all the rest."""
    quota = Quota(0, 0, max_live=4)
    mine = [Session(quota, "a", name) for name in "12"]
    Session(quota, "b", "b")
    mine[0].cut()
    Session(quota, "a", "3")
    assert [session.ended for session in mine] == [True, False]
    _refused(lambda: Session(quota, "a", "4"))
