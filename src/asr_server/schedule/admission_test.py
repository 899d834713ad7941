"""Admission in seconds of audio."""

import itertools
from contextlib import ExitStack, contextmanager

import pytest

from asr_server.core.errors import Overloaded
from asr_server.schedule.admission import Admission


@contextmanager
def held(admission, seconds, share=""):
    with admission.hold(share=share) as hold:
        admission.measure(hold, seconds)
        yield hold


def test_a_full_server_refuses_and_recovers():
    """Work over the bound is refused at once; what is released can be taken again."""
    admission = Admission(limit_s=100)
    with held(admission, 70):
        with pytest.raises(Overloaded), held(admission, 40):
            pass
        with held(admission, 30), pytest.raises(Overloaded):
            admission.check()
        assert admission.held_s == 70
    assert admission.held_s == 0
    admission.check()


def test_long_recordings_keep_no_short_one_out():
    """However long recordings usually are, a short one fits while half a minute is free."""
    admission = Admission(limit_s=10_000)
    for _ in range(100):
        with held(admission, 7_200):
            pass
    with held(admission, 9_960):
        admission.check()
        with held(admission, 5):
            pass


def test_of_two_whose_length_is_not_known_one_gets_in():
    """Neither is refused for what the other might turn out to be: the first to know its length stays."""
    admission = Admission(limit_s=25)
    with admission.hold() as first, admission.hold() as second:
        admission.measure(first, 20)
        with pytest.raises(Overloaded):
            admission.measure(second, 20)


def test_a_recording_that_has_begun_goes_on():
    """One over the bound fits an empty server. One that grows is not refused. What is answered stays answered."""
    admission = Admission(limit_s=100)
    with held(admission, 500):
        pass
    with held(admission, 50), held(admission, 40) as hold:
        admission.measure(hold, 500)
        admission.progress(hold, 70)
        admission.progress(hold, 20)
        assert admission.held_s == 480
    assert admission.held_s == 0


class Server:
    """A server in virtual time: it answers recordings one after the other, short ones first, at its own speed."""

    def __init__(self, speed, *, limit_s=1e9):
        self.speed, self.engine_s, self.under_way = speed, 0.0, []
        self.admission = Admission(limit_s, time_limit_s=600.0, engine_s=lambda: self.engine_s)

    def accept(self, seconds, time_limit_s=None, *, bulk=False):
        """A recording comes. Returns after how many seconds to come again, 0 if it is accepted."""
        with ExitStack() as stack:
            try:
                ticket = stack.enter_context(self.admission.hold(time_limit_s=time_limit_s, bulk=bulk))
                self.admission.measure(ticket, seconds, bulk=seconds > 60)
            except Overloaded as refusal:
                return refusal.retry_after_s
            self.under_way.append((ticket, stack.pop_all()))
        return 0

    def flood(self, seconds=50):
        """Send recordings of that length, until one is refused. Returns how many are accepted."""
        return next(count for count in itertools.count() if self.accept(seconds))

    def run(self, seconds):
        """Let that much time pass. Returns the recordings that were answered, each with when."""
        answered, until_s = [], self.engine_s + seconds
        while self.under_way and self.engine_s < until_s:
            ticket, ends = min(self.under_way, key=lambda pair: pair[0].bulk)
            span_s = min(30.0, ticket.left_s)
            self.engine_s += span_s / self.speed
            self.admission.progress(ticket, ticket.done_s + span_s)
            if not ticket.left_s:
                ends.close()
                self.under_way.remove((ticket, ends))
                answered.append((ticket, self.engine_s))
        return answered

    def learned(self):
        """Answer short recordings for some minutes."""
        while self.engine_s < 300:
            self.accept(30)
            self.run(1e9)
        return self


@pytest.mark.parametrize("speed", [0.3, 1.0, 5.0, 20.0])
def test_what_is_accepted_is_answered_in_time_and_little_else_is_refused(speed):
    """The load is a flood of short recordings, at any speed."""
    server = Server(speed).learned()
    began_s = server.engine_s
    accepted = server.flood()
    answered = server.run(1e9)
    assert len(answered) == accepted
    assert max(at_s for _, at_s in answered) - began_s <= 600 * 1.05
    assert accepted * 50 >= 600 * speed * 0.9 - 50


def test_a_restart_begins_with_a_careful_guess_and_learns():
    """At first as much is taken as two cores can do; soon after, what this machine can."""
    server = Server(20)
    assert server.flood() == 4 * 600 // 50
    server.run(1e9)
    assert server.flood() > 15 * 600 // 50
    short = Server(20)
    short.accept(5)
    short.run(1e9)
    assert short.flood() > 6 * 600 // 50
    assert server.learned().flood() > 0.9 * 20 * 600 // 50


def test_a_machine_that_becomes_slow_accepts_less():
    """The machine is slow after two minutes of work, as when live sessions take most of its time."""
    server = Server(20).learned()
    server.speed = 2
    server.accept(240)
    server.run(1e9)
    assert server.flood() < 1.5 * 2 * 600 / 50


def test_who_comes_again_when_told_is_accepted():
    """Retry-After is as long as it takes until there is room, and not much longer."""
    server = Server(5).learned()
    server.flood()
    wait_s = server.accept(50)
    assert 1 <= wait_s <= 30
    server.run(wait_s)
    assert not server.accept(50)
    bounded = Server(5, limit_s=1_000).learned()
    assert not bounded.accept(1_000)
    wait_s = bounded.accept(30)
    assert 30 / 5 <= wait_s <= 30 / 5 + 2
    bounded.run(wait_s)
    assert not bounded.accept(30)


def test_short_recordings_are_accepted_behind_long_ones_which_give_way_to_them():
    """Long ones are accepted only after what can be answered before them; a job with hours of time still is."""
    server = Server(2).learned()
    assert not server.accept(7_200, 14_400, bulk=True)
    assert not server.accept(30)
    assert server.accept(120)
    assert not server.accept(7_200, 14_400, bulk=True)
    server.admission.check(can_wait=True)


def test_what_live_sessions_leave_behind_keeps_no_short_recording_out():
    """However much it is: a recording has its share of the engine. Long ones, for which that is too little, wait."""
    server = Server(5).learned()
    with server.admission.hold_live() as ticket:
        ticket.seconds = 100_000.0
        assert server.flood(30) == pytest.approx(600 * 5 * 0.2 / 30, abs=1)
        assert server.accept(601)


def test_live_sessions_and_recordings_are_bounded_together():
    """Audio that waits in a session counts like a recording; a session with nothing waiting keeps nobody out."""
    admission = Admission(limit_s=5)
    with admission.hold_live() as ticket:
        with held(admission, 50):
            pass
        admission.check()
        ticket.seconds = 4.0
        for hold in (admission.hold, admission.hold_live):
            with pytest.raises(Overloaded):
                hold()
        assert admission.held_s == 4.0
    admission.check()


def test_a_refusal_says_when_to_come_again_by_the_measured_speed():
    """The seconds of audio that are too many, at the speed at which audio was answered of late."""
    admission = Admission(limit_s=1_000, share_s=100, speed=5.0)
    with held(admission, 90, "ann"):
        with pytest.raises(Overloaded) as refused:
            admission.hold(share="ann")
        assert refused.value.retry_after_s == 1  # 90 and a usual recording are at most 20 too many
        with pytest.raises(Overloaded) as refused:
            admission.check_more(None, 60.0, "ann")
        assert refused.value.retry_after_s == 10


def test_what_a_session_has_waiting_counts_with_what_it_wants_more():
    """Beside what others have; alone it may have as much as it likes."""
    admission = Admission(limit_s=100)
    with admission.hold_live() as session:
        session.seconds = 70
        admission.check_more(session, 500, "")
        with held(admission, 20):
            admission.check_more(session, 10, "")
            with pytest.raises(Overloaded):
                admission.check_more(session, 11, "")


def test_a_long_text_of_one_caller_keeps_no_short_one_of_another_out():
    """Texts take turns at the engine. The caller's own next text is refused, and so is another's that is as long."""
    admission = Admission(limit_s=14_400, time_limit_s=300, speed=10, share_s=7_200)
    with held(admission, 5_600, "one"):
        with held(admission, 3, "two"):
            pass
        with pytest.raises(Overloaded):
            admission.hold(share="one")
        with pytest.raises(Overloaded), held(admission, 5_600, "two"):
            pass
