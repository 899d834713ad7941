"""The times at which audio arrives, on a clock of the test's own."""

import time

import pytest

from asr_server.live import arrivals as module
from asr_server.live.arrivals import ArrivalTimes, SendingPace, began_before_moving_s


@pytest.fixture
def now(monkeypatch):
    """The clock's time, in a list of one."""
    found = [1_000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: found[0])
    return found


def test_a_lag_is_the_time_since_the_last_sample_arrived(now):
    """The piece with that sample counts, also where it is the piece's last one; audio that has not come has no lag."""
    times = ArrivalTimes()
    assert times.lag_ms(1) == 0
    times.add(100, 999.0)
    times.add(200, 999.5)
    assert [times.lag_ms(end) for end in (1, 100, 101, 200)] == [1_000, 1_000, 500, 500]
    assert times.lag_ms(201) == 0
    now[0] = 999.2  # another clock's time was the later one
    assert times.lag_ms(200) == 0


def test_who_is_ten_seconds_ahead_does_not_speak(now):
    """Up to there it may be a client that has caught up."""
    pace = SendingPace(32_000, now[0] - 5)
    assert pace.is_spoken(15 * 32_000)
    assert not pace.is_spoken(15 * 32_000 + 1)


def test_a_session_that_has_moved_may_send_an_utterance_again(now):
    """And what was spoken while it moved."""
    pace = SendingPace(32_000, began_before_moving_s(30.0))
    assert pace.is_spoken(49 * 32_000)
    assert time.monotonic() - pace.began_s == 40.0
