"""The policy of restarts, transition by transition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.processes.supervisor import GIVE_UP_S, ProcessState, RestartPolicy


def _running(policy, now_s=0.0):
    assert policy.begin(now_s)
    policy.on_ready(now_s)
    return policy


def test_the_first_who_needs_it_starts_it_and_the_others_wait():
    """One start, however many ask; then all may go."""
    policy = RestartPolicy()
    assert [policy.begin(0.0) for _ in range(3)] == [True, False, False]
    policy.on_ready(1.0)
    assert (policy.begin(1.0), policy.state) == (False, ProcessState.RUNNING)


def test_one_that_is_ended_on_purpose_starts_again_only_when_needed():
    """Who needs it while it is stopping waits for its end."""
    policy = _running(RestartPolicy())
    policy.stop()
    assert (policy.begin(1.0), policy.state) == (False, ProcessState.STOPPING)
    assert policy.on_exit(2.0) is None
    assert policy.state is ProcessState.STOPPED
    assert policy.begin(2.0)


def test_after_a_crash_it_is_started_at_once_then_later_and_later():
    """The wait doubles while nobody is answered, and then it is given up for a while."""
    policy, waits = RestartPolicy(), []
    policy.begin(0.0)
    for _ in range(5):
        policy.on_ready(0.0)
        waits.append(policy.on_exit(0.0))
    assert waits == [0.0, 0.25, 0.5, 1.0, None]
    assert policy.state is ProcessState.FAILED
    assert not policy.begin(9.9)
    assert policy.begin(10.0)


def test_after_the_rest_one_more_failure_gives_up_again():
    """The process is tried once, not five times more."""
    policy = RestartPolicy()
    policy.begin(0.0)
    for _ in range(5):
        policy.on_exit(0.0)
    policy.begin(20.0)
    assert policy.on_exit(20.0) is None
    assert not policy.begin(29.9)


@pytest.mark.parametrize("fruit", ["served", "time"])
def test_a_life_that_was_of_use_makes_good_for_the_fruitless_ones(fruit):
    """Any number of crashes with answers between them never gives up."""
    policy, now_s = RestartPolicy(), 0.0
    policy.begin(now_s)
    for _ in range(50):
        policy.on_ready(now_s)
        if fruit == "served":
            policy.served()
        else:
            now_s += 30.0
        assert policy.on_exit(now_s) == 0.0
    assert policy.state is ProcessState.STARTING


def test_one_that_never_became_ready_is_as_one_that_crashed():
    """A start that fails counts, however long it took."""
    policy = RestartPolicy()
    policy.begin(0.0)
    assert [policy.on_exit(now_s) for now_s in (60.0, 120.0)] == [0.0, 0.25]


def test_being_ready_too_late_does_not_undo_a_stop():
    """A process that is being ended never takes work."""
    policy = RestartPolicy()
    policy.begin(0.0)
    policy.stop()
    policy.on_ready(1.0)
    assert policy.state is ProcessState.STOPPING


@given(st.lists(st.sampled_from(["begin", "on_ready", "served", "stop", "on_exit"]), max_size=60))
def test_no_order_of_events_leaves_it_where_nobody_can_start_it(events):
    """Whatever happens, once the process is gone it can be started, at the latest after the rest."""
    policy, now_s = RestartPolicy(), 0.0
    for event in events:
        now_s += 1.0
        timed = event in ("begin", "on_ready", "on_exit")
        getattr(policy, event)(*([now_s] if timed else []))
    if policy.state in (ProcessState.RUNNING, ProcessState.STOPPING):
        policy.on_exit(now_s)
    assert policy.state in (ProcessState.STARTING, ProcessState.STOPPED, ProcessState.FAILED)
    if policy.state is not ProcessState.STARTING:
        assert policy.begin(now_s + GIVE_UP_S)
