"""When audio arrived, and who speaks and who sends a recording."""

import time

import pytest

from asr_server.live import inbox as module
from asr_server.live.inbox import ArrivalTimes, SendingPace, began_before_reopening_s

_BYTES_PER_S = 32_000


def test_a_lag_is_the_time_since_the_last_sample_arrived(monkeypatch):
    """The piece with that sample counts, also if it is the piece's last one.

    What a flush takes out of a frame came with the last piece.
    """
    monkeypatch.setattr(module.time, "monotonic", lambda: 1_000.0)
    times = ArrivalTimes()
    assert times.lag_ms(1) == 0
    for end_samples, time_s in ((100, 999.0), (200, 999.5), (300, 1_000.5)):
        times.add(end_samples, time_s)
    assert [times.lag_ms(end) for end in (1, 100, 101, 200)] == [1_000, 1_000, 500, 500]
    assert times.lag_ms(300) == 0
    monkeypatch.setattr(module.time, "monotonic", lambda: 1_001.0)
    assert [times.lag_ms(end) for end in (300, 301)] == [500, 500]


@pytest.mark.parametrize(("sent_s", "is_spoken"), [(0, True), (60, True), (69, True), (71, False), (600, False)])
def test_who_has_sent_ten_seconds_more_than_could_be_spoken_sends_a_recording(sent_s, is_spoken):
    """The time counts from the beginning of the audio, which may have been in another process, which died."""
    pace = SendingPace(_BYTES_PER_S, time.monotonic() - 60)
    assert pace.is_spoken(sent_s * _BYTES_PER_S) == is_spoken


def test_a_reopened_session_may_send_an_utterance_again():
    """Audio that the client recorded between the two sessions comes with it."""
    pace = SendingPace(_BYTES_PER_S, began_before_reopening_s(30.0))
    assert [pace.is_spoken(sent_s * _BYTES_PER_S) for sent_s in (49, 51)] == [True, False]
