"""Quotas: requests and sessions of a caller at once, its requests a minute, and the live sessions of all."""

from contextlib import ExitStack

import pytest

from asr_server.core.conftest import Clock
from asr_server.core.errors import Overloaded
from asr_server.net import access as module
from asr_server.net.access import Quota


class Session:
    """A live session of a caller as the server has it: over connections, and without one until it ends."""

    def __init__(self, quota, caller, name):
        self._taken = lambda: quota.taken(caller, live=True, resumes=name)
        self._connections, self._kept, self.ended = [], ExitStack(), False
        self._kept.enter_context(self.connect().kept(name, self.end))

    def connect(self):
        self._connections.append(ExitStack())
        return self._connections[-1].enter_context(self._taken())

    def cut(self):
        self._connections.pop(0).close()

    def end(self):
        self.ended = True
        self._kept.close()


def _goes(quota, caller="a"):
    """Return True if a request is let in, else the seconds to wait."""
    try:
        with quota.taken(caller):
            return True
    except Overloaded as refusal:
        return -refusal.retry_after_s


def test_a_refusal_costs_nothing():
    """A refusal by the limit at once spends no token, and a refusal for want of a token holds no place."""
    clock = Clock()
    quota = Quota(1, 7, clock)
    with quota.taken("a"):
        assert [_goes(quota) for _ in range(3)] == [-1] * 3
    assert [_goes(quota) for _ in range(7)] == [True] * 6 + [-9]
    clock.now_s += 9
    assert _goes(quota) is True


def test_memory_is_bounded_and_work_under_way_is_never_forgotten(monkeypatch):
    """A stream of strange callers pushes out the idle ones only."""
    monkeypatch.setattr(module, "MAX_CALLERS", 100)
    quota = Quota(1, 1, Clock())
    with quota.taken("busy"):
        for number in range(1_000):
            assert _goes(quota, str(number)) is True
        assert [_goes(quota, name) for name in ("busy", "999", "902", "0")] == [-60, -60, -60, True]


def test_the_session_that_was_left_first_gives_way_to_its_own_caller():
    """A connected one never does, and one that was resumed counts as left later."""
    quota = Quota(3, 0)
    sessions = [Session(quota, "a", str(number)) for number in range(3)]
    assert _goes(quota) == -1
    for left in (1, 0, 2):
        sessions[left].cut()
    sessions[1].connect()
    sessions[1].cut()
    assert _goes(quota, "b") is True
    assert [session.ended for session in sessions] == [False, False, False]
    with quota.taken("a"):
        assert [session.ended for session in sessions] == [True, False, False]
        assert _goes(quota) is True
    assert [session.ended for session in sessions] == [True, False, True]
    sessions[1].end()
    assert quota.live == 0


def test_a_caller_has_half_of_the_live_sessions_that_are_free():
    """The caller's own sessions without a connection make room."""
    quota = Quota(0, 0, max_live=5)
    mine = [Session(quota, "a", str(number)) for number in range(3)]
    other = Session(quota, "b", "0")
    for caller in "ab":
        with pytest.raises(Overloaded):
            Session(quota, caller, "9")
    mine[1].cut()
    Session(quota, "a", "9")
    assert [session.ended for session in (*mine, other)] == [False, True, False, False]
    assert quota.live == 4


def test_a_client_that_comes_back_needs_a_token_and_no_other_place():
    quota = Quota(1, 2, Clock())
    session = Session(quota, "a", "1")
    session.cut()
    session.connect()
    session.cut()
    with pytest.raises(Overloaded):
        session.connect()
    assert not session.ended


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
