"""The one engine thread: drains the heap, moves the batch step by step, loads and unloads. Knows no model.

All work on the accelerator happens here, load and unload included, so none of it needs a lock; the condition below
guards only the heap and the flags that other threads touch. A `try` wraps one call, one admission or one step, never
the loop: whatever fails, the next job finds the thread alive.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from asr_server.core.errors import AsrError, DeadlineExceeded, ShuttingDown, TranscriptionFailed
from asr_server.scheduling.heartbeat import Heartbeat
from asr_server.scheduling.job import AnyJob, Job, R
from asr_server.scheduling.observer import JobEnd, SchedulerObserver
from asr_server.scheduling.ports import Batch, Outcome, RowDelta, RowDone, RowFailed
from asr_server.scheduling.queue import JobQueue

# Longer waits are several: the system knows no end of them that lies beyond its calendar.
_LONGEST_SLEEP_S = 86_400.0


class ModelState(StrEnum):
    """Where the model is in its life."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What `/health` may know without asking the thread. `heartbeat_age_s`: seconds since the thread last moved."""

    state: ModelState
    load_error: str
    running: int
    depth: dict[str, int]
    waiting_s: float
    heartbeat_age_s: float
    busy: bool
    alive: bool


class EngineThread:
    """A min-heap of jobs in front of one thread that drives a `Batch`.

    `idle_timeout_s` of 0 keeps the model for ever. `live_reserve` places in the batch are kept free for live work, so
    that it starts with the next step however much else waits. `on_state` hears of every change of the model's state
    and how many seconds the change took; it is called on the engine thread, as is `watch`. `poll_idle` is called there
    once a turn with the time, for what the batch does when it is idle: it returns the seconds after which it wants to
    be called again, or None. `heartbeat` tells when the thread last moved. `clock` is monotonic seconds. Without
    `start` nothing runs until `turn` is called: for tests that want each turn in hand.
    """

    def __init__(
        self,
        batch: Batch,
        *,
        idle_timeout_s: float,
        live_reserve: int = 0,
        on_state: Callable[[ModelState, float], None] = lambda state, took_s: None,
        poll_idle: Callable[[float], float | None] = lambda now_s: None,
        watch: SchedulerObserver | None = None,
        heartbeat: Heartbeat | None = None,
        clock: Callable[[], float] = time.monotonic,
        start: bool = True,
    ) -> None:
        self._batch = batch
        self._idle_timeout_s = idle_timeout_s
        self._live_reserve = live_reserve
        self._on_state = on_state
        self._poll_idle = poll_idle
        self._poll_idle_at_s: float | None = None
        self._watch = watch or SchedulerObserver()
        self._heartbeat = heartbeat or Heartbeat(clock)
        self._clock = clock
        self._wake = threading.Condition()
        self._queue = JobQueue()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._rows: dict[int, AnyJob] = {}
        self._leases = 0
        self._stopping = False
        self._used_s = clock()
        self._busy = False
        self._state = ModelState.UNLOADED
        self._load_error = ""
        self._loaded_s = (0.0, 0.0)  # when the last load began and ended
        self._ended: Future[None] = Future()
        if start:
            # A daemon: the process must be able to end although an accelerator call never comes back.
            threading.Thread(target=self._loop, name="engine", daemon=True).start()

    # -- from any thread ---------------------------------------------------------------------------------------------

    def submit(self, job: Job[R]) -> Future[R]:
        """Queue a job; its future gets the result, or the error. Cancel the future to leave.

        Raises `ShuttingDown` when no new work is taken.
        """
        with self._wake:
            if self._stopping:
                raise ShuttingDown("The server is shutting down.")
            job.queued_s = self._clock()
            self._queue.push(job)
            self._wake.notify()
        return job.future

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` on the engine thread between two steps."""
        future: Future[Any] = Future()
        with self._wake:
            if self._stopping:
                raise ShuttingDown("The server is shutting down.")
            self._calls.append((work, future))
            self._wake.notify()
        return future

    def preload(self) -> Future[Any]:
        """Load the model now, as a job of the thread. The future raises what loading raised."""
        return self.call(self._ensure_loaded)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Keep the model from being unloaded for idleness: held by requests under way and by open live sessions."""
        with self._wake:
            self._leases += 1
        try:
            yield
        finally:
            with self._wake:
                self._leases -= 1
                self._used_s = self._clock()
                self._wake.notify()

    def snapshot(self) -> EngineSnapshot:
        """The state as last published; never waits for a step."""
        with self._wake:
            return EngineSnapshot(
                state=self._state,
                load_error=self._load_error,
                running=len(self._rows),
                depth=self._queue.depth(),
                waiting_s=self._queue.waiting_s(),
                heartbeat_age_s=self._heartbeat.age_s,
                busy=self._busy,
                alive=not self._ended.done(),
            )

    def close(self, timeout_s: float = 10.0) -> None:
        """Take no more work, fail what waits with `ShuttingDown`, let the present step end, unload, end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        try:
            self._ended.result(timeout=timeout_s)
        except TimeoutError:
            # A hung accelerator call cannot be interrupted; the process is about to end, and waiting would not help.
            return

    # -- on the engine thread ----------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self.turn()
            self._end()
        finally:
            self._ended.set_result(None)

    def turn(self) -> None:
        """One round: calls, callers that left, admission by urgency, one step of the batch, what idleness asks for."""
        self._run_calls()
        self._drop_cancelled()
        self._admit()
        self._step()
        self._poll_idle_batch()
        self._unload_when_idle()

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._busy = False
            while not (self._stopping or self._calls or self._queue or self._rows):
                remaining_s = self._sleep_s()
                if remaining_s is not None and remaining_s <= 0:
                    break
                self._wake.wait(remaining_s and min(remaining_s, _LONGEST_SLEEP_S))
            self._heartbeat.tick()
            self._busy = True
            return not self._stopping

    def _sleep_s(self) -> float | None:
        """Seconds until there is something to do without work; None when there is nothing."""
        poll_idle_s = None if self._poll_idle_at_s is None else self._poll_idle_at_s - self._clock()
        known = [seconds for seconds in (self._idle_remaining_s(), poll_idle_s) if seconds is not None]
        return min(known, default=None)

    def _poll_idle_batch(self) -> None:
        now_s = self._clock()
        left_s = self._poll_idle(now_s)
        self._poll_idle_at_s = None if left_s is None else now_s + left_s

    def _idle_remaining_s(self) -> float | None:
        """Seconds until the model is to be unloaded; None when it is not to be."""
        if not self._batch.loaded or self._idle_timeout_s == 0 or self._leases:
            return None
        return self._used_s + self._idle_timeout_s - self._clock()

    def _unload_when_idle(self) -> None:
        with self._wake:
            remaining_s = self._idle_remaining_s()
            idle = remaining_s is not None and remaining_s <= 0 and not (self._rows or self._queue)
        if idle:
            self._unload()

    def _run_calls(self) -> None:
        while self._calls:
            work, future = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except Exception as error:  # whatever the work raises belongs to its caller, not to the loop
                future.set_exception(error)
            self._touch()

    def _drop_cancelled(self) -> None:
        now_s = self._clock()
        for job in [j for j in self._rows.values() if j.cancelled or j.expired(now_s)]:
            self._remove(job)
            self._batch.drop(job.key)
            self._give_up(job, "while it was being worked on")

    def _admit(self) -> None:
        while (room := self._batch.room) > 0:
            job = self._next_job(live_only=bool(self._rows) and room <= self._live_reserve)
            if job is None:
                return
            try:
                self._ensure_loaded()
            except Exception as error:  # loading failed: everyone who waits for this model gets the reason now
                self._fail_all_waiting(job, error)
                return
            self._start(job)

    def _next_job(self, *, live_only: bool) -> AnyJob | None:
        while True:
            with self._wake:
                job = self._queue.pop(live_only=live_only)
            if job is None:
                return None
            if not job.cancelled and not job.expired(self._clock()):
                return job
            self._give_up(job, "while it waited for its turn")

    def _give_up(self, job: AnyJob, when: str) -> None:
        """A job that nobody waits for, or whose deadline has passed."""
        # A caller leaves at the deadline, too, and either may be seen first.
        self._watch.ended(job, JobEnd.EXPIRED if job.expired(self._clock()) else JobEnd.CANCELLED)
        if not job.cancelled:
            job.fail(DeadlineExceeded(f"The time limit of the request passed {when}."))

    def _start(self, job: AnyJob) -> None:
        self._heartbeat.tick()
        job.started_s = self._clock()
        began_s, ended_s = self._loaded_s
        job.load_s = max(0.0, ended_s - max(began_s, job.queued_s))
        self._watch.started(job)
        try:
            self._batch.admit(job.key, job.item)
        except Exception as error:  # this item is at fault: only its caller hears of it
            self._fail(job, error)
        else:
            with self._wake:
                self._rows[job.key] = job

    def _step(self) -> None:
        if not self._rows:
            return
        self._heartbeat.tick()
        rows, began_s = len(self._rows), self._clock()
        try:
            outcomes = list(self._moving(self._batch.step()))
        except Exception as error:  # no row could be told to be at fault: all fail, the loop goes on
            outcomes = [RowFailed(key, error) for key in self._rows]
            for key in list(self._rows):
                self._batch.drop(key)
        self._watch.stepped(rows, self._clock() - began_s)
        for outcome in outcomes:
            self._hand_out(outcome)
        self._touch()

    def _moving(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """A step may be several passes: each that brings something shows that the accelerator moves."""
        for outcome in outcomes:
            self._heartbeat.tick()
            yield outcome

    def _hand_out(self, outcome: Outcome) -> None:
        job = self._rows.get(outcome.key)
        if job is None:
            return
        match outcome:
            case RowDelta(value=value):
                if (receive := job.on_delta) is not None:
                    _deliver(job, receive, value)
            case RowDone(value=value):
                self._remove(job)
                self._watch.ended(job, JobEnd.CANCELLED if job.cancelled else JobEnd.DONE, value)
                job.succeed(value)
            case RowFailed(error=error):
                self._remove(job)
                self._fail(job, error)

    def _fail(self, job: AnyJob, error: Exception) -> None:
        self._watch.ended(job, JobEnd.CANCELLED if job.cancelled else JobEnd.FAILED)
        job.fail(_domain(error))

    def _remove(self, job: AnyJob) -> None:
        job.ended_s = self._clock()
        with self._wake:
            self._rows.pop(job.key, None)

    def _ensure_loaded(self) -> None:
        if self._batch.loaded:
            return
        began_s = self._clock()
        self._load_error = ""
        self._become(ModelState.LOADING, 0.0)
        try:
            self._batch.load()
        except Exception as error:
            self._load_error = error.message if isinstance(error, AsrError) else type(error).__name__
            self._heartbeat.tick()
            self._become(ModelState.FAILED, self._clock() - began_s)
            raise
        # Before the state says that no load is under way: the long beat was the load's.
        self._heartbeat.tick()
        self._loaded_s = (began_s, self._clock())
        self._become(ModelState.LOADED, self._clock() - began_s)
        self._touch()

    def _unload(self) -> None:
        if not self._batch.loaded:
            return
        began_s = self._clock()
        self._batch.unload()
        self._become(ModelState.UNLOADED, self._clock() - began_s)

    def _become(self, state: ModelState, took_s: float) -> None:
        self._state = state
        self._on_state(state, took_s)

    def _fail_all_waiting(self, first: AnyJob, error: Exception) -> None:
        with self._wake:
            waiting = self._queue.drain()
        for job in (first, *waiting):
            self._fail(job, error)

    def _touch(self) -> None:
        with self._wake:
            self._used_s = self._clock()

    def _end(self) -> None:
        error = ShuttingDown("The server is shutting down.")
        with self._wake:
            left = self._queue.drain() + list(self._rows.values())
            calls, self._calls = list(self._calls), deque()
        for job in left:
            self._batch.drop(job.key)
            self._fail(job, error)
        for _, future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        self._unload()


def _deliver(job: AnyJob, receive: Callable[[object], None], value: object) -> None:
    try:
        receive(value)
    except Exception:  # a broken receiver is its own caller's trouble: the row is given up at the next step
        job.future.cancel()


def _domain(error: Exception) -> AsrError:
    """The error as one of ours, the original as its cause."""
    if isinstance(error, AsrError):
        return error
    wrapped = TranscriptionFailed("The engine failed on this audio.")
    wrapped.__cause__ = error
    return wrapped
