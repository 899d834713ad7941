"""Admission in seconds of audio."""

from contextlib import ExitStack, contextmanager

import pytest

from asr_server.core.errors import Overloaded
from asr_server.scheduling.admission import Admission


@contextmanager
def held(admission, seconds):
    """A recording of that length."""
    with admission.hold() as hold:
        admission.measure(hold, seconds)
        yield hold


def test_a_full_server_refuses_and_recovers():
    """Over the bound: refused at once; what is released can be taken again."""
    admission = Admission(limit_s=100)
    with held(admission, 70):
        with pytest.raises(Overloaded), held(admission, 40):
            pass
        with held(admission, 30), pytest.raises(Overloaded):
            admission.check()
        assert admission.held_s == 70
    assert admission.held_s == 0
    admission.check()


def test_a_recording_over_the_bound_fits_an_empty_server():
    """Otherwise it could never be transcribed at all."""
    with held(Admission(limit_s=10), 50):
        pass


def test_a_crowd_is_refused_before_any_length_is_known():
    """Those that were let in hold the usual length from the start, so hardly one too many begins to be decoded."""
    admission, begun = Admission(limit_s=100), ExitStack()
    for _ in range(100):
        with held(admission, 20):
            pass
    with begun:
        for _ in range(5):
            begun.enter_context(admission.hold())
        with pytest.raises(Overloaded), admission.hold():
            pass


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


def test_who_turns_out_longer_than_it_said_goes_on():
    """A length that fitted and grows is not refused; nor is what an error leaves counted."""
    admission = Admission(limit_s=100)
    with held(admission, 50), held(admission, 40) as hold:
        admission.measure(hold, 500)
        assert admission.held_s == 550
    assert admission.held_s == 0


def test_a_failing_holder_releases():
    """An error inside gives the seconds back."""
    admission = Admission(limit_s=10)
    with pytest.raises(ZeroDivisionError), held(admission, 5):
        1 / 0  # noqa: B018  # the error is the point
    assert admission.held_s == 0


def test_the_hint_grows_with_the_backlog_and_shrinks_with_speed():
    """Retry-After follows the work that is held and the speed that was seen."""

    def hint(seconds, speed):
        admission = Admission(limit_s=seconds)
        for _ in range(50):
            admission.observe(speed, 1.0)
        with held(admission, seconds), pytest.raises(Overloaded) as refusal:
            admission.check()
        return refusal.value.retry_after_s

    assert hint(1000, 20) > hint(100, 20)
    assert hint(1000, 20) > hint(1000, 100)


def test_live_sessions_and_recordings_are_bounded_together():
    """What waits in a session counts like a recording; with nothing waiting it keeps nobody out."""
    admission = Admission(limit_s=5)
    with admission.hold_live() as ticket:
        with held(admission, 50):
            pass
        admission.check()
        ticket.seconds = 4.0
        for waiting in (admission.hold(), admission.hold_live()):
            with pytest.raises(Overloaded), waiting:
                pass
        assert admission.held_s == 4.0
    admission.check()
