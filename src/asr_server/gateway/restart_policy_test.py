"""The life of the worker, transition by transition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.gateway.restart_policy import Decision, RestartConfig, RestartPolicy, WorkerState

RULES = RestartConfig(fruitful_s=30.0, first_wait_s=0.25, most_unproductive=5, rest_s=10.0)


def _running(life, now_s=0.0):
    assert life.want(now_s) is Decision.START
    life.ready(now_s)
    return life


def test_the_first_who_needs_it_starts_it_and_the_others_wait():
    """One start, however many ask; then all may go."""
    life = RestartPolicy(RULES)
    assert [life.want(0.0) for _ in range(3)] == [Decision.START, Decision.WAIT, Decision.WAIT]
    life.ready(1.0)
    assert (life.want(1.0), life.state) == (Decision.GO, WorkerState.RUNNING)


def test_one_that_is_ended_on_purpose_starts_again_only_when_needed():
    """Who needs it while it is stopping waits for its end."""
    life = _running(RestartPolicy(RULES))
    life.stop()
    assert (life.want(1.0), life.state) == (Decision.WAIT, WorkerState.STOPPING)
    assert life.exited(2.0) is None
    assert life.state is WorkerState.STOPPED
    assert life.want(2.0) is Decision.START


def test_after_a_crash_it_is_started_at_once_then_later_and_later():
    """The wait doubles while nobody is answered, and then it is given up for a while."""
    life, waits = RestartPolicy(RULES), []
    life.want(0.0)
    for _ in range(5):
        life.ready(0.0)
        waits.append(life.exited(0.0))
    assert waits == [0.0, 0.25, 0.5, 1.0, None]
    assert life.given_up
    assert life.want(9.9) is Decision.GIVE_UP
    assert life.want(10.0) is Decision.START


def test_after_the_rest_one_more_failure_gives_up_again():
    """The worker is tried once, not five times more."""
    life = RestartPolicy(RULES)
    life.want(0.0)
    for _ in range(5):
        life.exited(0.0)
    life.want(20.0)
    assert life.exited(20.0) is None
    assert life.want(29.9) is Decision.GIVE_UP


@pytest.mark.parametrize("fruit", ["served", "time"])
def test_a_life_that_was_of_use_makes_good_for_the_fruitless_ones(fruit):
    """Any number of crashes with answers between them never gives up."""
    life, now_s = RestartPolicy(RULES), 0.0
    life.want(now_s)
    for _ in range(50):
        life.ready(now_s)
        if fruit == "served":
            life.served()
        else:
            now_s += 30.0
        assert life.exited(now_s) == 0.0
    assert life.state is WorkerState.STARTING


def test_one_that_never_became_ready_is_as_one_that_crashed():
    """A start that fails counts, however long it took."""
    life = RestartPolicy(RULES)
    life.want(0.0)
    assert [life.exited(now_s) for now_s in (60.0, 120.0)] == [0.0, 0.25]


def test_being_ready_too_late_does_not_undo_a_stop():
    """A worker that is being ended never takes work."""
    life = RestartPolicy(RULES)
    life.want(0.0)
    life.stop()
    life.ready(1.0)
    assert life.state is WorkerState.STOPPING


@given(st.lists(st.sampled_from(["want", "ready", "served", "stop", "exited"]), max_size=60))
def test_no_order_of_events_leaves_it_where_nobody_can_start_it(events):
    """Whatever happens, once the process is gone it can be started, at the latest after the rest."""
    life, now_s = RestartPolicy(RULES), 0.0
    for event in events:
        now_s += 1.0
        timed = event in ("want", "ready", "exited")
        getattr(life, event)(*([now_s] if timed else []))
    if life.state in (WorkerState.RUNNING, WorkerState.STOPPING):
        life.exited(now_s)
    assert life.state in (WorkerState.STARTING, WorkerState.STOPPED, WorkerState.FAILED)
    if life.state is not WorkerState.STARTING:
        assert life.want(now_s + RULES.rest_s) is Decision.START
