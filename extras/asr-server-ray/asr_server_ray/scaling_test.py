"""How many replicas a load needs."""

from types import SimpleNamespace

import pytest

from asr_server_ray.scaling import Load, policy, replicas


def _loads(count, **load):
    return {str(n): Load(**load) for n in range(count)}


@pytest.mark.parametrize(
    ("waiting_s", "speed", "expected"),
    [(0, 10, 1), (299, 10, 1), (301, 10, 2), (3_000, 10, 10), (3_000, 100, 1)],
)
def test_what_waits_is_done_in_half_a_minute(waiting_s, speed, expected):
    """At the speed of the replicas that run."""
    assert replicas(_loads(1, waiting_s=waiting_s, audio_s_per_s=speed), 1) == expected


@pytest.mark.parametrize(("taken", "expected"), [(0, 1), (15, 1), (16, 2), (30, 2), (31, 3), (80, 6)])
def test_a_quarter_of_the_streams_stays_free(taken, expected):
    """Of 20 that fit on a replica; `taken` is the number of all sessions."""
    assert replicas({"a": Load(streams=20, sessions=taken)}, 1) == expected


def test_sessions_on_many_replicas_need_as_many_as_their_sum():
    """And replicas that nobody needs go."""
    assert replicas(_loads(8, streams=20, sessions=15), 8) == 8
    assert replicas(_loads(8, streams=20, sessions=2), 8) == 2


def test_a_replica_that_has_measured_nothing_counts_as_the_others():
    """Its guess would ask for ten more. Where none has measured, the guess is all there is."""
    measured, new = Load(streams=40, sessions=25), Load(streams=2, streams_measured=0.0, sessions=5)
    assert replicas({"a": measured, "b": new}, 2) == 1
    assert replicas({"a": new}, 1) == 4


def test_without_a_measured_speed_audio_that_waits_asks_for_one_more():
    """Of the number that runs."""
    assert replicas(_loads(2, waiting_s=50), 2) == 3
    assert replicas({}, 4) == 4


def test_ray_serve_is_told_the_same():
    """Its context has each figure by replica; names that are not ours are left out."""
    metrics = {
        "streams": {"a": 20.0, "b": 20.0},
        "streams_measured": {"a": 1.0, "b": 1.0},
        "sessions": {"a": 20.0, "b": 20.0},
        "waiting_s": {"a": 0.0, "b": 0.0},
        "audio_s_per_s": {"a": 4.0, "b": 4.0},
        "running_requests": {"a": 1.0},
    }
    context = SimpleNamespace(aggregated_metrics=metrics, current_num_replicas=2)
    assert policy(context) == (3, {})
    assert policy(SimpleNamespace(aggregated_metrics=None, current_num_replicas=2)) == (2, {})
