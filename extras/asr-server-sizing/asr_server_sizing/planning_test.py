from dataclasses import replace

import pytest

from asr_server_sizing import planning
from asr_server_sizing.planning import Bound, Targets, TooMuch
from asr_server_sizing.replica import HostCosts, Limits
from asr_server_sizing.simulation import Load, Servers


@pytest.fixture
def servers(make_profile, rules):
    """One replica serves some ten sessions in time."""
    return Servers(1, make_profile(slots=4, decode_s=0.01, prefill_s=0.05), rules)


def test_a_plan_meets_the_targets_and_one_replica_less_does_not(servers):
    """The figure is the least one."""
    load, targets = Load(live=60), Targets(0.4, 0.4)
    found = planning.plan(servers, load, targets)
    assert found.replicas > 1
    assert planning.rank(found.outcome.lags.partials_s, 0.95) <= 0.4
    assert found.bound is Bound.ENGINE
    assert isinstance(planning._attempt(servers, load, targets, found.replicas - 1), Bound)


@pytest.mark.parametrize(
    ("limits", "host", "bound"),
    [
        (Limits(live_sessions=2), HostCosts(), Bound.SESSIONS),
        (Limits(), HostCosts(silent_loop_s=0.35, voiced_loop_s=0.35, detection_s=0.1), Bound.HOST),
        (Limits(), HostCosts(silent_loop_s=0.1, voiced_loop_s=0.1, detection_s=0.35), Bound.DETECTION),
    ],
)
def test_a_plan_says_what_is_used_up_first(servers, limits, host, bound):
    """Two sessions a replica by a setting, by its event loop, or by its voice detection."""
    found = planning.plan(replace(servers, limits=limits, host=host), Load(live=20), Targets(5.0, 5.0))
    assert (found.replicas, found.bound) == (10, bound)


def test_recordings_need_as_many_replicas_as_the_engine_is_slow(servers):
    """At least the load over what full batches do."""
    rate = planning.recordings_limit(servers.profile)
    found = planning.plan(servers, Load(recordings_s_per_s=3.5 * rate, recording_s=60.0), Targets())
    assert 4 <= found.replicas <= 6


@pytest.mark.parametrize(
    ("load", "reason"),
    [(Load(live=10), "alone"), (Load(live=10**9), "more than")],
)
def test_what_cannot_be_planned_is_refused(servers, load, reason):
    """A target that one session alone misses, and a load beyond all bounds."""
    with pytest.raises(TooMuch, match=reason):
        planning.plan(servers, load, Targets(0.01, 0.01))
