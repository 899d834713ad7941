"""The idle timeout on a clock that the test moves."""

from asr_server.core.idle import IdleTimer


class Clock:
    def __init__(self):
        self.now_s = 50.0

    def __call__(self):
        return self.now_s


def test_the_timeout_counts_from_the_last_use():
    """The timeout passes at its very second, and a use begins it anew."""
    clock = Clock()
    timer = IdleTimer(10.0, clock)
    clock.now_s += 9.5
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (0.5, 9.5, False)
    clock.now_s += 0.5
    assert timer.expired
    timer.touch()
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (10.0, 0.0, False)


def test_what_is_held_is_not_idle():
    """However long, and until the last of several has released it; the time counts from there."""
    clock = Clock()
    timer = IdleTimer(10.0, clock)
    timer.hold()
    timer.hold()
    clock.now_s += 100.0
    timer.release()
    clock.now_s += 100.0
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (None, 0.0, False)
    timer.release()
    assert (timer.remaining_s, timer.expired) == (10.0, False)
    clock.now_s += 10.0
    assert timer.expired


def test_zero_is_no_timeout():
    """An object without a timeout is idle, and never for too long."""
    clock = Clock()
    timer = IdleTimer(0.0, clock)
    clock.now_s += 1e9
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (None, 1e9, False)
