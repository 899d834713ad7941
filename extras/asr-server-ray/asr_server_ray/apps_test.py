"""When an app is being stopped."""

import pytest

from asr_server_ray.apps import RunningApps


@pytest.fixture
def running():
    """The apps as "a" sees them; `now_s` is its clock."""
    found = RunningApps(clock=lambda: found.now_s)
    found.now_s, found.own = 100.0, "a"
    return found


def test_an_app_that_gets_no_new_requests_any_more_is_stopped(running):
    """After two seconds, whatever happens to the others meanwhile."""
    running.update(["a", "b"])
    running.update(["b"])
    running.now_s += 1.9
    assert not running.own_is_stopped
    running.update(["b", "c"])
    running.now_s += 0.2
    assert running.own_is_stopped


def test_an_app_that_starts_is_not_stopped(running):
    """The others run before it does."""
    running.update(["b"])
    running.now_s += 60
    assert not running.own_is_stopped


def test_an_app_that_is_left_out_for_a_moment_goes_on(running):
    """Ray Serve does that while it changes the configuration."""
    running.update(["a"])
    running.update([])
    running.now_s += 1
    running.update(["a"])
    running.now_s += 60
    assert not running.own_is_stopped


def test_only_apps_that_run_are_others(running):
    """Of one that was stopped or has died, the sessions are moving. Before the first update none is known."""
    assert running.is_other("b")
    running.update(["a", "b"])
    assert [running.is_other(name) for name in "abc"] == [False, True, False]
