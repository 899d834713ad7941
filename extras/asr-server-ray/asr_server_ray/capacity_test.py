"""What an app of a cluster can take, by what scripted replicas publish."""

from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from asr_server.core.errors import Overloaded
from asr_server.engine.protocol import Utterance
from asr_server.schedule.admission import Admission
from asr_server.schedule.capacity import EngineWork, FreeCapacity, StreamRules
from asr_server_ray.apps import RunningApps
from asr_server_ray.capacity import FleetCapacity
from asr_server_ray.messages import Address, ReplicaStats, RowCall
from asr_server_ray.routing import Routing

_numbers = count(1)

MEASURED = FreeCapacity(
    free_streams=10,
    streams=10,
    streams_measured=True,
    stream_cost=0.04,
    speech_share=1.0,
    audio_s_per_s=50.0,
    free_audio_s_per_s=20.0,
    audio_measured=True,
)
NEW = replace(MEASURED, streams=2, streams_measured=False, audio_s_per_s=4.0, free_audio_s_per_s=4.0)
NEW = replace(NEW, audio_measured=False)


class App:
    """One app, and the replicas that it knows."""

    def __init__(self, name="app", **rules):
        self.now_s, self.work = 100.0, EngineWork()
        self.running = RunningApps()
        self.running.own = name
        self.routing = Routing(self.running)
        rules = StreamRules(steps_are_work=False, **rules)
        self.capacity = FleetCapacity(self.routing, self.work, rules, slots=lambda: 64, clock=lambda: self.now_s)
        self.admission = Admission(10_000, streams=self.capacity)
        self.sessions = ExitStack()

    def publish(self, **replicas):
        self.routing.update(replicas)
        return self

    def open(self, number=1):
        for _ in range(number):
            self.sessions.enter_context(self.admission.hold_live())

    def answer_late(self):
        for _ in range(60):
            self.now_s += 1.0
            self.work.speech_s += 40
            self.work.first_speech_s = min(self.work.first_speech_s, self.now_s)
            self.work.row_s += 40 * 2.0
            self.work.partials += 20
            self.work.partials_s += 20 * 0.9
            self.admission.update()

    def speak(self, *streams):
        for stream in streams:
            item = Utterance(np.zeros(16_000, np.float32), session=f"{stream}:0")
            row = RowCall(next(_numbers), item, "", True, self.running.own, 0.0)
            self.routing.choose(row)
        return row

    @property
    def free(self):
        return self.admission.capacity().free_streams

    @property
    def is_full(self):
        with suppress(Overloaded):
            self.admission.check_live()
            return False
        return True


def _stats(capacity=MEASURED, streams=None, **sessions):
    capacity = replace(capacity, streams=streams or capacity.streams)
    return ReplicaStats(capacity, sessions, address=Address("localhost", 1, b""))


def test_the_capacity_is_the_sum_of_the_replicas():
    """Of streams and of recordings."""
    found = App().publish(a=_stats(), b=_stats(streams=30)).capacity.free()
    assert (found.streams, found.free_streams, found.streams_measured) == (40, 40, True)
    assert (found.audio_s_per_s, found.free_audio_s_per_s, found.audio_measured) == (100.0, 40.0, True)
    assert found.stream_cost == pytest.approx(0.04)


def test_a_session_takes_a_stream_from_when_it_is_opened():
    """Before it has spoken, when it has a replica, when that publishes it, and no longer when it has ended."""
    app = App().publish(a=_stats(), b=_stats())
    app.open(3)
    assert app.free == 17
    app.speak("s", "t", "u")
    assert app.free == 17
    app.publish(a=_stats(app=2), b=_stats(app=1))
    assert app.free == 17
    app.sessions.close()
    assert app.free == 20
    assert sorted(app.routing.keep_streams({"u"})) == ["s", "t"]
    assert app.free == 20


def test_sessions_are_refused_when_all_streams_are_taken():
    """As by one server; a replica more lets in what it can take, and one less refuses again."""
    app = App().publish(a=_stats(), b=_stats())
    app.open(20)
    assert app.is_full
    app.publish(a=_stats(), b=_stats(), c=_stats(NEW))
    assert (app.is_full, app.free) == (False, 10)
    app.publish(a=_stats())
    assert app.is_full
    assert app.free == 0


def test_what_other_apps_have_taken_is_not_free():
    """As the replicas publish it. Sessions of an app that has gone move to those that run, which have room for them."""
    app = App().publish(a=_stats(other=6), b=_stats(app=1, other=4))
    app.running.update(["app", "other"])
    app.open()
    app.speak("s")
    found = app.admission.capacity()
    assert (found.streams, found.free_streams) == (10, 9)
    app.running.update(["app", "third"])
    assert app.free == 19


def test_streams_of_a_full_replica_are_not_taken_from_another():
    """After one was lost, all sessions are on the other; the next one has the new replica to itself."""
    app = App().publish(a=_stats(streams=15))
    app.open(15)
    app.speak(*map(str, range(15)))
    app.publish(a=_stats(), b=_stats())
    assert app.free == 10


def test_a_replica_on_which_a_row_broke_off_has_no_free_streams():
    """It may have died. Its sessions go to the others."""
    app = App().publish(a=_stats(), b=_stats())
    app.open(4)
    app.routing.broke_off(app.speak("s"))
    assert app.free == 6


def test_a_new_replica_counts_as_the_mean_of_those_that_have_measured():
    """It runs the same model. While none has measured, its guess is shown, and refuses nobody."""
    found = App().publish(a=_stats(), b=_stats(streams=20), c=_stats(NEW)).capacity.free()
    assert found.streams == 45
    assert (found.audio_s_per_s, found.free_audio_s_per_s) == (150.0, 90.0)
    app = App().publish(a=_stats(NEW), b=_stats(NEW))
    app.open(5)
    found = app.admission.capacity()
    assert (found.streams, found.free_streams, found.streams_measured, found.audio_measured) == (4, 0, False, False)
    assert not app.is_full


def test_without_a_replica_nothing_is_free():
    """Sessions that are open wait; others are refused."""
    app = App().publish(a=_stats())
    app.open()
    app.publish()
    assert (app.free, app.admission.capacity().audio_s_per_s, app.is_full) == (0, 0.0, True)


def test_an_app_takes_no_more_than_its_limit():
    """MAX_LIVE_SESSIONS is of each app, and audio that waits leaves less room."""
    app = App(max_sessions=12).publish(a=_stats(streams=100))
    app.open(5)
    found = app.admission.capacity()
    assert (found.streams, found.free_streams) == (12, 7)
    assert app.capacity.free(room=3).free_streams == 3


def test_an_app_whose_partials_are_late_takes_no_more():
    """Though the replicas have room: its rows come back too late, so the app itself is what is full."""
    app = App().publish(a=_stats(streams=500))
    app.open(40)
    assert app.free == 460
    app.answer_late()
    assert app.free == 0
    assert app.is_full


def test_late_partials_leave_two_streams_for_each_replica():
    """As one server has two, however slow it is."""
    app = App().publish(a=_stats(streams=2), b=_stats(streams=2), c=_stats(streams=2))
    app.open(3)
    app.answer_late()
    found = app.admission.capacity()
    assert (found.streams, found.free_streams) == (6, 3)
