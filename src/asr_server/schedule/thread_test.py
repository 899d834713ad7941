"""The engine thread, driven with a scripted batch: faults are injected here, which no real model does on demand."""

import time
import weakref
from concurrent.futures import CancelledError
from contextlib import closing
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.conftest import Clock
from asr_server.core.errors import EngineFailed, ModelUnavailable, ShuttingDown, TranscriptionFailed
from asr_server.core.idle import IdleTimer
from asr_server.schedule.conftest import WAIT_S, Scripted
from asr_server.schedule.job import Job, JobEnd, Priority, SchedulerObserver
from asr_server.schedule.model import RowDone
from asr_server.schedule.thread import EngineThread
from E2Etest.drive.procfs import until

ENDLESS = 10**9


@pytest.fixture
def batch():
    return Scripted()


@pytest.fixture
def thread(batch):
    """Make a thread that keeps a model for centuries, longer than the system's clock can count."""
    with closing(EngineThread(batch, idle_timeout_s=99_999_999_999.0)) as made:
        yield made


def test_a_load_that_is_asked_for_makes_no_row(batch):
    """The future ends with the load, or has its error. Every change of the model is reported."""
    watch, on_state, batch.broken_loads = Recorder(), Mock(), 1
    thread = EngineThread(batch, idle_timeout_s=0, watch=watch, on_state=on_state, start=False)
    for error in ("no weights", "", ""):
        load = thread.load()
        thread.turn()
        assert isinstance(load.exception(0), ModelUnavailable) == bool(error)
        assert thread.snapshot().load_error == error
    assert [call.args[1].value for call in on_state.call_args_list] == ["loading", "failed", "loading", "loaded"]
    assert watch.starts == watch.ends == []


def test_a_row_is_handed_out_as_soon_as_it_is_finished(batch, by_hand):
    """The row does not wait for the rest of the step. A step that fails later does not end it again."""
    done = []

    def step(begin_s=None):
        for key in list(batch.rows)[:2]:
            del batch.rows[key]
            yield RowDone(key, "done")
            done.append([future.done() for future in futures])
        raise RuntimeError("the rest of the step failed")

    batch.step = step
    futures = [by_hand.submit(Job(0)) for _ in range(3)]
    by_hand.turn()
    assert done == [[True, False, False], [True, True, False]]
    assert [future.result(0) for future in futures[:2]] == ["done"] * 2
    assert isinstance(futures[2].exception(0), TranscriptionFailed)
    assert by_hand.snapshot().running == 0


def test_deltas_arrive_in_order_and_a_broken_receiver_costs_only_itself(thread):
    """A receiver gets every delta; one that raises loses its own row."""
    seen = []
    good = thread.submit(Job(3, on_delta=seen.append))
    bad = thread.submit(Job(3, on_delta=Mock(side_effect=ValueError("receiver"))))
    assert good.result(WAIT_S) == "done"
    assert seen == [3, 2, 1]
    with pytest.raises(CancelledError):
        bad.result(WAIT_S)


def test_closing_settles_everyone(batch):
    """Running, waiting and later work all end with `shutting_down`; nobody hangs; the model is unloaded."""
    batch.size = 1
    thread = EngineThread(batch, idle_timeout_s=0)
    running = thread.submit(Job(ENDLESS))
    until(lambda: batch.rows)
    waiting = thread.submit(Job(1))
    thread.close()
    for future in (running, waiting):
        with pytest.raises(ShuttingDown):
            future.result(WAIT_S)
    with pytest.raises(ShuttingDown):
        thread.submit(Job(1))
    assert not batch.loaded
    assert not thread.snapshot().alive


def test_a_cancelled_job_that_waits_keeps_no_audio(by_hand):
    """Callers may come and leave while a model loads, which takes minutes."""
    audio = Mock()
    gone = weakref.ref(audio)
    future = by_hand.submit(Job(audio))
    del audio
    future.cancel()
    assert gone() is None
    by_hand.turn()
    assert by_hand.snapshot().running == 0


def test_a_result_that_races_a_cancellation_kills_nothing(thread):
    """Many callers leaving at the very moment of their result do not end the loop. A long wait in between is none."""
    for _ in range(200):
        future = thread.submit(Job(0))
        future.cancel()
    until(lambda: not thread.snapshot().busy)
    assert thread.submit(Job(0)).result(WAIT_S) == "done"


@pytest.fixture
def by_hand(batch):
    """A thread whose turns the test runs itself."""
    return EngineThread(batch, idle_timeout_s=0, live_reserve=1, start=False)


def test_a_live_job_starts_within_one_turn_behind_a_hundred_bulk_jobs(batch, by_hand):
    """Bulk work never takes the last place, so live work is in the batch after the next turn, however much waits."""
    for _ in range(100):
        by_hand.submit(Job(10**9, priority=Priority.BULK))
    by_hand.turn()
    assert len(batch.rows) == batch.size - 1
    by_hand.submit(Job(0.25, priority=Priority.PARTIAL))
    by_hand.turn()
    assert batch.admitted[-1] == 0.25


def test_the_batch_is_tended_when_it_asked_to_be(batch):
    """The batch is tended once a turn, and without work at the time that it named; not again when it named none."""
    asked, called = [0.01, 0.02, None], []

    def poll_idle():
        called.append(time.monotonic())
        return asked[len(called) - 1]

    with closing(EngineThread(batch, idle_timeout_s=0, poll_idle=poll_idle)) as thread:
        assert thread.submit(Job(0)).result(WAIT_S) == "done"
        until(lambda: len(called) == 3)
        time.sleep(0.1)
        assert len(called) == 3
    assert called[1] - called[0] >= 0.01
    assert called[2] - called[1] >= 0.02


ITEMS = [0, 1, 4, ENDLESS, "bad", "fail", "explode"]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(Priority), st.sampled_from(ITEMS)),
        st.tuples(st.just("cancel"), st.integers(0, 40), st.none()),
        st.tuples(st.just("turn"), st.none(), st.none()),
        st.tuples(st.just("break the next load"), st.none(), st.none()),
    ),
    min_size=15,  # on average twice as many: shorter ones have few jobs at a time
    max_size=60,
)


class Recorder(SchedulerObserver):
    def __init__(self):
        self.starts, self.ends, self.rows = [], [], []
        self.started = lambda job: self.starts.append(job.key)
        self.ended = lambda job, end, value=None: self.ends.append((job.key, end))
        self.stepped = lambda rows, took_s: self.rows.append(rows)


@settings(max_examples=300)
@given(OPERATIONS, st.integers(1, 5), st.integers(0, 2))
def test_any_order_of_events_settles_every_job(operations, size, reserve):
    """Random submits, cancels, faults and turns: the batch never overflows, live work is never passed over (as no time
    passes, recordings have had their share of it), and in the end every job has its result, its error, or its
    cancellation, of which the watch hears once, after at most one start. What is cancelled while it waits never
    starts."""
    batch, watch = Scripted(size), Recorder()
    thread = EngineThread(batch, idle_timeout_s=0, live_reserve=reserve, watch=watch, clock=Clock(100.0), start=False)
    jobs, abandoned = [], set()
    for name, first, second in operations:
        if name == "submit":
            jobs.append(Job(second, priority=first))
            thread.submit(jobs[-1])
        elif name == "cancel" and jobs:
            left = jobs[first % len(jobs)]
            abandoned |= {left.key} - set(watch.starts)
            left.future.cancel()
        elif name == "break the next load":
            batch.loaded, batch.broken_loads = bool(batch.rows), 1
        elif name == "turn":
            free, before = batch.free_slots, thread.snapshot().depth
            thread.turn()
            after = thread.snapshot().depth
            assert len(batch.rows) <= size
            assert after["final"] + after["partial"] <= max(0, before["final"] + before["partial"] - free)
    for _ in range(100):
        for job in jobs:
            if job.item == ENDLESS and job.started_s:
                job.future.cancel()
        thread.turn()
    assert (batch.rows, thread.snapshot().running) == ({}, 0)
    assert not abandoned & set(watch.starts)
    ends = dict(watch.ends)
    assert len(ends) == len(watch.ends) == len(jobs)
    for job in jobs:
        if job.future.cancelled():
            assert ends[job.key] is JobEnd.CANCELLED
        elif error := job.future.exception():
            assert ends[job.key] is JobEnd.FAILED
            assert error.__cause__ or isinstance(error, ModelUnavailable)
        else:
            assert (ends[job.key], job.future.result()) == (JobEnd.DONE, "done")
    assert len(set(watch.starts)) == len(watch.starts)
    assert {*watch.rows} <= {*range(1, size + 1)}
    assert {key for key, end in watch.ends if end is JobEnd.DONE} <= set(watch.starts)


@pytest.mark.parametrize(("after_s", "end"), [(9.0, JobEnd.CANCELLED), (10.0, JobEnd.EXPIRED)])
def test_a_watch_hears_which_callers_left_at_their_deadline(batch, after_s, end):
    """A job that is cancelled then is late, in the queue and in the batch alike; before, its caller has left."""
    clock, watch = Clock(100.0), Recorder()
    batch.size = 1
    thread = EngineThread(batch, idle_timeout_s=0, watch=watch, clock=clock, start=False)
    jobs = [Job(9, deadline_s=110.0), Job(9, deadline_s=lambda: 110.0)]
    for job in jobs:
        thread.submit(job)
    thread.turn()
    clock.now_s += after_s
    for job in jobs:
        job.future.cancel()
    thread.turn()
    assert watch.ends == [(job.key, end) for job in jobs]
    assert watch.starts == [jobs[0].key]


class Slow(Scripted):
    """Each load and each step takes its time on the clock. A step makes progress before its first outcome."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.on_progress = clock, lambda: None

    def load(self):
        self.clock.now_s += 60.0
        super().load()

    def step(self, begin_s=None):
        self.clock.now_s += 20.0
        self.on_progress()
        for outcome in super().step():
            self.clock.now_s += 2.0
            yield outcome


def test_a_job_knows_its_times():
    """The time for a load is the job's own part of it: a later job waited for none."""
    clock = Clock(100.0)
    thread = EngineThread(Slow(clock), idle_timeout_s=0, clock=clock, start=False)
    early, late = Job(1), Job(3)
    thread.submit(early)
    clock.now_s = 105.0
    thread.turn()
    clock.now_s += 7.0
    thread.submit(late)
    thread.turn()
    assert (early.queued_s, early.started_s, early.load_s, early.ended_s) == (100.0, 165.0, 60.0, 216.0)
    assert late.load_s == 0.0


def test_only_a_step_without_progress_is_a_hang():
    """A load is none: the beat is fresh when its state says that it is over. Within a step the beat is as old as the
    last outcome, or the last progress that the batch reports."""
    clock, ages = Clock(100.0), []
    batch, heartbeat = Slow(clock), IdleTimer(0, clock)

    def note(*_):
        ages.append(thread.snapshot().heartbeat_age_s)

    def progress():
        note()
        heartbeat.touch()
        note()

    batch.on_progress = progress
    thread = EngineThread(batch, idle_timeout_s=0, clock=clock, heartbeat=heartbeat, on_state=note, start=False)
    for _ in range(3):
        thread.submit(Job(3))
    clock.now_s += 5.0
    note()
    thread.turn()
    note()
    assert ages == [5.0, 0.0, 0.0, 20.0, 0.0, 0.0]
    assert clock.now_s == 105.0 + 60.0 + 20.0 + 3 * 2.0


def test_an_engine_that_failed_ends_its_thread_and_every_job_is_told(batch):
    """The process is told before any of them. The batch is left alone, as whatever it is asked may hang."""
    told, jobs, dropped = [], [], []
    batch.drop = dropped.append

    def on_failure(error):
        told.append((error, [job.done() for job in jobs]))

    thread = EngineThread(batch, idle_timeout_s=0, on_failure=on_failure)
    batch.gate.clear()
    jobs += [thread.submit(Job(item)) for item in ("die", 5, 5, 5, 5, 5)]
    until(lambda: len(batch.rows) == batch.size)
    batch.gate.set()
    for job in jobs:
        with pytest.raises(EngineFailed):
            job.result(WAIT_S)
    until(lambda: not thread.snapshot().alive)
    assert thread.snapshot().failure == "an illegal memory access was encountered"
    with pytest.raises(EngineFailed, match="illegal memory access"):
        thread.submit(Job(0))
    ((error, done),) = told
    assert isinstance(error, EngineFailed)
    assert not any(done)
    thread.close()
    assert batch.unloads == 0
    assert len(dropped) <= batch.size


def test_a_thread_that_fails_outside_of_a_step_leaves_nobody_waiting(batch, monkeypatch):
    """Unloading raises here: a job that comes later gets an error and does not wait for ever."""
    monkeypatch.setattr(batch, "unload", lambda: 1 / 0)
    thread = EngineThread(batch, idle_timeout_s=0.01)
    assert thread.submit(Job(0)).result(WAIT_S) == "done"
    until(lambda: not thread.snapshot().alive)
    with pytest.raises(EngineFailed):
        thread.submit(Job(0))
    thread.close()
