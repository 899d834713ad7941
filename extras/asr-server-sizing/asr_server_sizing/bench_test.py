"""The figures of a measurement; the measurement itself runs in E2Etest/cli."""

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from asr_server_sizing.bench import figures, table
from asr_server_sizing.server_load import LiveStats, Load, Measurement, RequestStats, rank

LOAD = Load("http://127.0.0.1:8100", "secret", Path("a.wav"), callers=4, requests=20, limit_s=30, sessions=1)


@given(st.lists(st.integers(0, 10**6), min_size=1), st.integers(0, 100).map(lambda percent: percent / 100))
def test_a_rank_is_the_smallest_value_that_enough_do_not_exceed(values, share):
    """The rank is one of the values; one smaller would not be enough."""
    found = rank(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < max(share * len(values), 1e-9)


def test_speed_is_audio_of_answered_requests_over_their_time():
    """Ten answers of 4 s in 8 s; the first request is in no figure."""
    measured = Measurement(9.0, 4.0, RequestStats([0.5] * 10, elapsed_s=8.0), LiveStats([0.1], [0.7]))
    shown = figures(LOAD, measured)
    assert shown["files"]["audio_s_per_s"] == 5
    assert shown["files"]["wait_s"] == {"p50": 0.5, "p90": 0.5, "p99": 0.5, "max": 0.5}
    assert "5.0 s of audio a second" in table(LOAD, measured)
    assert "secret" not in str(shown) + table(LOAD, measured)


def test_without_answers_there_are_no_figures():
    """There is no division by zero."""
    measured = Measurement(1.0, 4.0, RequestStats(failures=Counter(rate_limit_exceeded=2), unfinished=4), LiveStats())
    shown = figures(LOAD, measured)
    assert shown["files"]["audio_s_per_s"] is shown["files"]["wait_s"] is shown["live"]["partial_lag_s"] is None
    assert "2 failed (rate_limit_exceeded), 4 unfinished" in table(LOAD, measured)
