"""Quotas against a simple model, in any order of requests, sessions, cuts and waits.

The promises: a caller has limited requests and sessions at once and requests a minute; a session keeps its place while
its client is away, until its own caller needs it; what is refused costs nothing; and nobody's share depends on what
other callers do, but for the live sessions of all.
"""

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asr_server.core.conftest import Clock
from asr_server.core.errors import Overloaded
from asr_server.net import access as module
from asr_server.net.access import Quota

_AT_ONCE, _MAX_LIVE = 4, 5
CALLERS = st.sampled_from("abc")
PICKS = st.integers(0, 99)


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


class _Share:
    """The model of one caller: tokens, open requests, and sessions in the order in which they were left."""

    def __init__(self, tokens):
        self.tokens, self.requests, self.sessions = tokens, [], []

    @property
    def used(self):
        return len(self.requests) + len(self.sessions)


class Quotas(RuleBasedStateMachine):
    """The quota and the model, which say the same of every call."""

    @initialize(per_minute=st.integers(1, 12))
    def start(self, per_minute):
        """Nobody has asked for anything."""
        self.clock, self.per_minute, self.number = Clock(), per_minute, 0
        self.quota = Quota(_AT_ONCE, per_minute, self.clock, max_live=_MAX_LIVE)
        self.shares = {caller: _Share(per_minute) for caller in "abc"}

    def _sessions(self):
        return [session for share in self.shares.values() for session in share.sessions]

    def _is_let_in(self, share, *, live=False):
        """True if the model lets it in; the model ends the session that has to give way."""
        if share.tokens < 1 - 1e-9:
            return False
        full = live and len(share.sessions) >= _MAX_LIVE - len(self._sessions())
        if full or share.used >= _AT_ONCE:
            waiting = [session for session in share.sessions if not session.connections]
            if not waiting:
                return False
            share.sessions.remove(waiting[0])
            self.must_end = waiting[0]
        share.tokens -= 1
        return True

    def _call(self, call, expected):
        """Return what a call returns, None if it is refused; whichever of the two is expected."""
        if expected:
            return call()
        with pytest.raises(Overloaded):
            call()
        return None

    @rule(caller=CALLERS, live=st.booleans())
    def begin(self, caller, live):
        """A request or a session begins, unless its caller has no place or no token."""
        share, self.must_end, self.number = self.shares[caller], None, self.number + 1
        expected = self._is_let_in(share, live=live)
        if live:
            if session := self._call(lambda: Session(self.quota, caller, str(self.number)), expected):
                share.sessions.append(session)
        else:
            place = ExitStack()
            if self._call(lambda: place.enter_context(self.quota.taken(caller)), expected):
                share.requests.append(place)
        assert self.must_end is None or self.must_end.ended

    @precondition(lambda self: any(share.requests for share in self.shares.values()))
    @rule(pick=PICKS)
    def finish(self, pick):
        """A request ends."""
        busy = [share for share in self.shares.values() if share.requests]
        requests = busy[pick % len(busy)].requests
        requests.pop(pick % len(requests)).close()

    @precondition(lambda self: any(session.connections for session in self._sessions()))
    @rule(pick=PICKS)
    def cut(self, pick):
        """A session loses its oldest connection, and is now the one that was left last."""
        connected = [session for session in self._sessions() if session.connections]
        session = connected[pick % len(connected)]
        session.cut()
        mine = next(share for share in self.shares.values() if session in share.sessions)
        mine.sessions.remove(session)
        mine.sessions.append(session)

    @precondition(lambda self: any(len(session.connections) < 3 for session in self._sessions()))
    @rule(pick=PICKS)
    def resume(self, pick):
        """A client comes back: it needs a token, and no other place."""
        found = [session for session in self._sessions() if len(session.connections) < 3]
        session = found[pick % len(found)]
        share = next(share for share in self.shares.values() if session in share.sessions)
        expected = share.tokens >= 1 - 1e-9
        if self._call(session.connect, expected):
            share.tokens -= 1

    @precondition(lambda self: any(not session.connections for session in self._sessions()))
    @rule(pick=PICKS)
    def end(self, pick):
        """A session whose client is away ends."""
        away = [session for session in self._sessions() if not session.connections]
        session = away[pick % len(away)]
        session.end()
        for share in self.shares.values():
            share.sessions = [each for each in share.sessions if each is not session]

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds):
        """Tokens come back evenly, a minute's worth at most."""
        self.clock.now_s += seconds
        for share in self.shares.values():
            share.tokens = min(self.per_minute, share.tokens + seconds * self.per_minute / 60)

    @invariant()
    def sessions_are_those_of_the_model(self):
        """No session ends without need, and each is counted once."""
        assert not any(session.ended for session in self._sessions())
        assert self.quota.live == len(self._sessions())
        assert all(share.used <= _AT_ONCE for share in self.shares.values())

    def teardown(self):
        """Everything comes back."""
        for share in self.shares.values():
            for place in share.requests:
                place.close()
            for session in share.sessions:
                session.end()
                while session.connections:
                    session.cut()
        assert self.quota.live == 0


TestQuotas = Quotas.TestCase
TestQuotas.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def _goes(quota, caller="a"):
    """Return True if a request is let in, else the seconds to wait."""
    try:
        with quota.taken(caller):
            return True
    except Overloaded as refusal:
        return -refusal.retry_after_s


@given(st.integers(1, 120), st.integers(0, 300))
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


def test_memory_is_bounded_and_work_under_way_is_never_forgotten(monkeypatch):
    """A stream of strange callers pushes out the idle ones only."""
    monkeypatch.setattr(module, "MAX_CALLERS", 100)
    quota = Quota(1, 1, Clock())
    with quota.taken("busy"):
        for number in range(1_000):
            assert _goes(quota, str(number)) is True
        assert [_goes(quota, name) for name in ("busy", "999", "902", "0")] == [-60, -60, -60, True]


def test_without_limits_nobody_is_refused():
    """0 is off."""
    quota = Quota(0, 0)
    with ExitStack() as places:
        for _ in range(1_000):
            places.enter_context(quota.taken("a", live=True))


def test_an_id_is_no_way_around_the_limit():
    """Many connections to one session need places of their own; and another caller's id is worth nothing."""
    quota = Quota(1, 0)
    session = Session(quota, "a", "1")
    for _ in range(3):
        session.connect()
    with pytest.raises(Overloaded):
        session.connect()
    with quota.taken("b", live=True, resumes="1"):
        assert _goes(quota, "b") == -1
