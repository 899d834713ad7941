"""Who speaks, and who sends a recording."""

import time

import pytest

from asr_server.live.arrivals import SendingPace, began_before_moving_s

_BYTES_PER_S = 32_000


@pytest.mark.parametrize(("sent_s", "is_spoken"), [(0, True), (60, True), (69, True), (71, False), (600, False)])
def test_who_has_sent_ten_seconds_more_than_could_be_spoken_sends_a_recording(sent_s, is_spoken):
    """Since the audio began, which may be before the session: in another process, which died."""
    pace = SendingPace(_BYTES_PER_S, time.monotonic() - 60)
    assert pace.is_spoken(sent_s * _BYTES_PER_S) == is_spoken


def test_a_session_that_moves_may_send_an_utterance_again():
    """And what was recorded meanwhile."""
    pace = SendingPace(_BYTES_PER_S, began_before_moving_s(30.0))
    assert [pace.is_spoken(sent_s * _BYTES_PER_S) for sent_s in (49, 51)] == [True, False]
