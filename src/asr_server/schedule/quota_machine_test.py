"""Quotas against a simple model, in any order of requests, sessions, cuts and waits.

The promises: a caller has limited requests and sessions at once and requests a minute; a session keeps its place while
its client is away, until its own caller needs it; what is refused costs nothing; and nobody's share depends on what
other callers do, but for the live sessions of all.
"""

from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asr_server.core.errors import Overloaded
from asr_server.schedule.quota import Quota
from asr_server.schedule.quota_test import Clock, Session

_AT_ONCE, _PER_MINUTE, _MAX_LIVE = 3, 6, 5
CALLERS = st.sampled_from("abc")
PICKS = st.integers(0, 99)


class _Share:
    """The model of one caller: tokens, open requests, and sessions in the order in which they were left."""

    def __init__(self):
        self.tokens, self.requests, self.sessions = float(_PER_MINUTE), [], []

    @property
    def used(self):
        return len(self.requests) + len(self.sessions)


class Quotas(RuleBasedStateMachine):
    """The quota and the model, which say the same of every call."""

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.quota = Quota(_AT_ONCE, _PER_MINUTE, self.clock, max_live=_MAX_LIVE)
        self.shares = {caller: _Share() for caller in "abc"}
        self.number = 0

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
            share.tokens = min(_PER_MINUTE, share.tokens + seconds * _PER_MINUTE / 60)

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
