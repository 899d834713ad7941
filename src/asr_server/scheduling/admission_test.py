"""Admission in seconds of audio."""

import pytest

from asr_server.core.errors import Overloaded
from asr_server.scheduling.admission import Admission


def test_a_full_server_refuses_and_recovers():
    """Over the bound: refused at once; what is released can be taken again."""
    admission = Admission(limit_s=100)
    with admission.hold(90):
        with pytest.raises(Overloaded), admission.hold(20):
            pass
        with admission.hold(10), pytest.raises(Overloaded):
            admission.check()
        assert admission.held_s == 90
    assert admission.held_s == 0
    admission.check()


def test_a_recording_over_the_bound_fits_an_empty_server():
    """Otherwise it could never be transcribed at all."""
    with Admission(limit_s=10).hold(50):
        pass


def test_a_failing_holder_releases():
    """An error inside gives the seconds back."""
    admission = Admission(limit_s=10)
    with pytest.raises(ZeroDivisionError), admission.hold(5):
        1 / 0  # noqa: B018  # the error is the point
    assert admission.held_s == 0


def test_the_hint_grows_with_the_backlog_and_shrinks_with_speed():
    """Retry-After follows the work that is held and the speed that was seen."""

    def hint(held_s, speed):
        admission = Admission(limit_s=held_s)
        for _ in range(50):
            admission.observe(speed, 1.0)
        with admission.hold(held_s), pytest.raises(Overloaded) as refusal:
            admission.check()
        return refusal.value.retry_after_s

    assert hint(1000, 20) > hint(100, 20)
    assert hint(1000, 20) > hint(1000, 100)
