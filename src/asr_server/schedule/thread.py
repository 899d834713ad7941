"""The engine thread, and its interface, which an engine in another process implements too. The thread takes jobs from
the queue, runs the batches step by step, and loads and unloads their models.

All work on the accelerator happens on this one thread, loading and unloading included. So no batch needs a lock, and
no model makes a step while another is being loaded. Each admission and each step has its own `try`, so the loop
continues whatever fails. The thread ends only when no later step can succeed (`EngineFailed`), or when the loop itself
fails. Then every job gets that error.

State that several threads touch, and what guards it:
- the queue, the holds on the idle timers, and `_stopping`: `_wake`, a condition, on which the thread also sleeps;
- the rows of a model: changed only by the engine thread, with `_wake` held so that `snapshot` sees a whole dict; the
  engine thread reads them without it;
- a job's future: has its own lock. The caller may cancel at any moment, and `Job` decides who was first;
- a job's times: written before its future is done, read after;
- the heartbeat and the times of the idle timers: each is one reference, which is replaced as a whole.
`_wake` is never held while the batch, an observer or a callback runs: these may take long, or call back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from weakref import ref

from asr_server.core.errors import EngineFailed, ShuttingDown
from asr_server.core.idle import IdleTimer
from asr_server.schedule.job import (
    DEFAULT,
    RECORDINGS_SHARE,
    AnyJob,
    Job,
    JobEnd,
    JobQueue,
    Priority,
    R,
    RequestClock,
    SchedulerObserver,
)
from asr_server.schedule.model import (
    Batch,
    EngineSnapshot,
    ModelStatus,
    OnState,
    Outcome,
    RowDelta,
    RowDone,
    RowFailed,
    ServedModel,
    ServedModels,
)

# `Condition.wait` cannot wait for longer than the system's clock can count; longer waits are made of several.
_LONGEST_WAIT_S = 86_400.0
# While there is live work, about how long a step may take to begin rows: new live work waits that long.
LIVE_BEGIN_S = 0.25
# How far live work and recordings may fall behind: a greater lag is forgotten. This bounds how long one can keep the
# other waiting: live work for 2.5 s, recordings for 10 s.
_FORGOTTEN_S = 2.0


class Scheduler(Protocol):
    """Takes jobs for the models of an engine, the most urgent first."""

    request_clock: RequestClock  # for the jobs' deadlines
    clock: Callable[[], float]  # for the jobs' times: monotonic seconds

    def submit(self, job: Job[R]) -> Future[R]:
        """Queue a job; its future gets the result, or the error. To abandon the job, cancel the future.

        Raises `ShuttingDown` if no new work is accepted, `EngineFailed` if no work can be done any more.
        """

    def load(self, model: str = DEFAULT) -> Future[None]:
        """Load a model before other work. The future gets the error if the load fails. Raises like `submit`."""

    def lease(self, *, live: bool = False, model: str = DEFAULT) -> AbstractContextManager[None]:
        """Keep a model loaded until the block ends, if memory allows: for requests and live sessions.

        While a `live` lease is held, steps are short enough for live work that may come at any moment.
        """

    def snapshot(self) -> EngineSnapshot:
        """Return the present state; never waits."""

    def with_recordings_s(self) -> float:
        """Return the time of all steps with recordings so far, live work in them included, by the request clock."""

    def close(self) -> None:
        """Take no more work, fail all jobs with `ShuttingDown`, and end. May block: do not call it on an event loop."""


class StepTime:
    """Divides the time of one step between live work and recordings.

    A step first advances all rows that have had an outcome before, then begins new ones, live work first. The time up
    to an outcome of an advanced row is divided among all advanced rows; the time up to the first outcome of a new row
    is charged to that row. `jobs`: the rows of the batch. `clock`: monotonic seconds.
    """

    def __init__(self, jobs: Collection[AnyJob], clock: Callable[[], float]) -> None:
        self.live_s = self.recordings_s = 0.0
        self.has_recordings = any(not job.priority.is_live for job in jobs)
        # Computed once: the time up to each outcome of these rows is charged to all of them.
        self._moved_live_share = _live_share([job for job in jobs if job.begun])
        self._jobs = jobs
        self._clock = clock
        self._last_s = clock()

    def on_outcome(self, job: AnyJob) -> None:
        """Charge the time since the last outcome. A job has `begun` after its first one."""
        self._charge(self._moved_live_share if job.begun else _live_share([job]))

    def end(self) -> None:
        """End the step. Charge the time since the last outcome to rows that have no outcome yet."""
        new = [job for job in self._jobs if not job.begun]
        urgent = [job for job in new if job.priority.is_live]
        self._charge(_live_share(urgent or new) if new else self._moved_live_share)

    def _charge(self, live_share: float | None) -> None:
        """Divide the time since the last outcome. With None, charge nobody."""
        now_s = self._clock()
        took_s, self._last_s = now_s - self._last_s, now_s
        if live_share is not None:
            self.live_s += took_s * live_share
            self.recordings_s += took_s * (1 - live_share)


def _live_share(jobs: Collection[AnyJob]) -> float | None:
    return sum(job.priority.is_live for job in jobs) / len(jobs) if jobs else None


@dataclass(eq=False)
class RecordingsShare:
    """Counts by how much deferrable work, such as recordings, has missed its share of the engine's time."""

    behind_s: float = 0.0  # negative if it had more

    def charge(self, urgent_s: float, own_s: float, *, is_wanted: bool) -> None:
        """Count the seconds of a step for urgent and for deferrable work. Without deferrable work nothing is owed."""
        behind_s = self.behind_s + RECORDINGS_SHARE * (urgent_s + own_s) - own_s
        self.behind_s = max(-_FORGOTTEN_S, min(_FORGOTTEN_S, behind_s)) if is_wanted else 0.0


class EngineThread:
    """A queue of jobs in front of one thread that drives a `Batch` and the batches of `others`, further models by name.

    After `idle_timeout_s` without a job or a lease a model is unloaded; 0 keeps it for ever. `live_reserve` slots of
    each batch are kept free for live jobs, so that they start with the next step however much else waits. Recordings in
    turn keep a share of the time. Callbacks run on the engine thread and must return at once. `poll_idle` is called
    once a turn, so that batches can unload parts of their own; it returns the seconds until it is due again, or None.
    `on_failure` is called once if the engine fails, before any job gets the error: the process has to end. `heartbeat`
    counts the time since the last progress: it is touched at every outcome, and within steps if the batch reports
    progress. Without `start` nothing runs until `turn` is called (for tests).
    """

    def __init__(
        self,
        batch: Batch,
        *,
        others: Mapping[str, Batch] | None = None,
        idle_timeout_s: float,
        live_reserve: int = 0,
        on_state: OnState = lambda model, state, took_s: None,
        poll_idle: Callable[[], float | None] = lambda: None,
        watch: SchedulerObserver | None = None,
        heartbeat: IdleTimer | None = None,
        request_clock: RequestClock | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_failure: Callable[[EngineFailed], None] = lambda error: None,
        start: bool = True,
    ) -> None:
        self._on_failure = on_failure
        self._failure: EngineFailed | None = None
        self._live_reserve = live_reserve
        self._poll_idle = poll_idle
        self._poll_idle_at_s: float | None = None
        self._watch = watch or SchedulerObserver()
        self._heartbeat = heartbeat or IdleTimer(0, clock)
        self.clock = clock
        self.request_clock = request_clock or RequestClock(clock=clock)
        self._models = ServedModels()
        for name, each in {DEFAULT: batch, **(others or {})}.items():
            idle = IdleTimer(idle_timeout_s, clock)
            self._models[name] = ServedModel(name, each, idle, on_state, self._heartbeat, self.request_clock)
        self._wake = threading.Condition()
        self._queue = JobQueue()
        self._share = RecordingsShare()
        self._bulk_share = RecordingsShare()  # of models that have only bulk work
        self._live_leases = 0
        self._with_recordings_s = 0.0
        self._stopping = False
        self._busy = False
        self._ended: Future[None] = Future()
        if start:
            # A daemon: the process must be able to end even if a call to the accelerator never returns.
            threading.Thread(target=self._loop, name="engine", daemon=True).start()

    # -- called from any thread --------------------------------------------------------------------------------------

    def submit(self, job: Job[R]) -> Future[R]:
        # Check and queue under one lock: no job may arrive after the last drain in `_end`.
        with self._wake:
            if self._failure is not None:
                raise EngineFailed(self._failure.message)
            if self._stopping:
                raise ShuttingDown()
            job.queued_s = job.queued_s or self.clock()
            self._queue.push(job)
            self._wake.notify()
        # By a weak reference: the future keeps its callbacks, and a cycle would keep the audio of every job.
        job.future.add_done_callback(partial(self._let_go, ref(job)))
        return job.future

    def _let_go(self, reference: ref[AnyJob], future: Future[R]) -> None:
        """Drop the audio of a cancelled job that is queued, perhaps for as long as a load takes."""
        with self._wake:
            if future.cancelled() and (job := reference()) is not None and job.is_queued:
                job.item = ()  # not None, which stands for a load

    def load(self, model: str = DEFAULT) -> Future[None]:
        return self.submit(Job[None](None, Priority.FINAL, model=model))

    @contextmanager
    def lease(self, *, live: bool = False, model: str = DEFAULT) -> Iterator[None]:
        with self._wake:
            self._models[model].idle.hold()
            self._live_leases += live
        try:
            yield
        finally:
            with self._wake:
                self._models[model].idle.release()
                self._live_leases -= live
                self._wake.notify()  # the thread may sleep without a limit, and now the idle timer sets one

    def snapshot(self) -> EngineSnapshot:
        with self._wake:
            models = {
                name: ModelStatus(model.state, model.load_error, len(model.rows))
                for name, model in self._models.items()
            }
            return EngineSnapshot(
                models=models,
                running=sum(model.rows for model in models.values()),
                depth=self._queue.depth(),
                waiting_s=self._queue.waiting_s(),
                heartbeat_age_s=self._heartbeat.idle_s,
                busy=self._busy,
                alive=not self._ended.done(),
                failure=self._failure.message if self._failure is not None else "",
            )

    def with_recordings_s(self) -> float:
        return self._with_recordings_s

    def close(self) -> None:
        """Take no more work, finish the present step, fail all jobs with `ShuttingDown`, unload, end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()  # not missed: the thread reads `_stopping` under this lock before it sleeps
        # A call to the accelerator that hangs cannot be interrupted, and the process is about to end.
        with suppress(TimeoutError):
            self._ended.result(timeout=10.0)

    # -- called on the engine thread ---------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self.turn()
        except Exception as error:  # in code without its own `try`, such as unloading; jobs would wait for ever
            failure = EngineFailed("The engine's thread failed. The server starts again; try again.")
            failure.__cause__ = error
            self._note_failure(error if isinstance(error, EngineFailed) else failure)
        try:
            self._end()
        finally:
            self._ended.set_result(None)

    def turn(self) -> None:
        """Run one round: drop cancelled rows, admit the most urgent jobs, run one step, unload what is idle."""
        self._drop_cancelled()  # first: their slots are for the jobs that are admitted next
        self._admit()
        self._step()
        self._unload_idle()

    def _wait_for_work(self) -> bool:
        """Sleep until a turn is due. Return False if the thread is to end."""
        with self._wake:
            self._busy = False
            while not (self._stopping or self._failure or self._queue or self._models.rows):
                waits_s = [model.idle.remaining_s for model in self._models.values() if model.batch.loaded]
                if self._poll_idle_at_s is not None:
                    waits_s.append(self._poll_idle_at_s - self.clock())
                wait_s = min((wait_s for wait_s in waits_s if wait_s is not None), default=_LONGEST_WAIT_S)
                if wait_s <= 0:
                    break
                # Releases `_wake` while it sleeps. `submit`, `lease` and `close` notify; a spurious wake-up only
                # repeats this loop.
                self._wake.wait(min(wait_s, _LONGEST_WAIT_S))
            # `busy` and a fresh heartbeat become visible together: an old heartbeat while busy looks like a hang.
            self._heartbeat.touch()
            self._busy = True
            return not (self._stopping or self._failure)

    def _unload_idle(self) -> None:
        again_s = self._poll_idle()
        self._poll_idle_at_s = None if again_s is None else self.clock() + again_s
        for model in self._models.values():
            with self._wake:
                idle = model.idle.expired and not (model.rows or self._queue.waits_for(model.name))
            # A job that is submitted at this point is not lost: the model is loaded again for it.
            if idle:
                model.unload()

    def _drop_cancelled(self) -> None:
        # Callers cancel their jobs at the deadline, by the request clock, which stands still while a model is loaded.
        # This thread enforces no deadlines, so no caller has to wait for it if it hangs in a step.
        for job in [j for j in self._models.rows if j.cancelled]:
            self._remove(job)
            self._models[job.model].batch.drop(job.key)
            self._note_end(job, JobEnd.CANCELLED)

    def _admit(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job.context.run(self._models.ensure_loaded, job.model)
            except Exception as error:  # everyone who waits for this model gets the reason now
                with self._wake:
                    waiting = self._queue.drain((job.model,))
                # Without the lock: callbacks of the futures run here, and other threads need the lock meanwhile.
                for each in (job, *waiting):
                    self._fail(each, error)
                return
            if job.item is None:  # of `load`
                self._models[job.model].idle.touch()
                job.succeed(None)
            else:
                self._start(job)

    def _next_job(self) -> AnyJob | None:
        """Return the next job for which a batch has a slot, or None."""
        while True:
            models, reserve = self._models.values(), self._live_reserve
            live = [model.name for model in models if model.batch.urgent_slots > 0]
            # An empty batch takes any job: otherwise one with no more slots than are reserved would take no recordings.
            recordings = [model.name for model in models if model.batch.free_slots > (reserve if model.rows else 0)]
            with self._wake:
                # Live work goes first, unless recordings have not had their share: then it waits until they have.
                waits = self._share.behind_s > 0 and self._has_recordings()
                job = None if waits else self._queue.pop(live=True, models=live)
                job = job or self._queue.pop(live=False, models=recordings)
            if job is None or not job.cancelled:
                return job
            self._note_end(job, JobEnd.CANCELLED)

    def _note_end(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        if job.cancelled:
            end = job.why_cancelled(self.request_clock.now_s())
        (job.observer or self._watch).ended(job, end, value)

    def _has_recordings(self) -> bool:
        return self._queue.has(live=False) or any(not job.priority.is_live for job in self._models.rows)

    def _start(self, job: AnyJob) -> None:
        model = self._models[job.model]
        self._heartbeat.touch()
        model.idle.touch()
        job.started_s = self.clock()
        job.load_s = max(0.0, model.load_ended_s - max(model.load_began_s, job.queued_s))
        (job.observer or self._watch).started(job)
        try:
            job.context.run(model.batch.admit, job.key, job.item, job.priority.is_live)
        except Exception as error:  # this item is at fault: only its caller gets the error
            self._fail(job, error)
        else:
            with self._wake:
                model.rows[job.key] = job

    def _step(self) -> None:
        """Run one step of each model that has rows, the one with the most urgent rows first. Models with only bulk work
        wait while another has more urgent rows, such as a sentence to be heard now, unless their share is behind."""
        models = [model for model in self._models.values() if model.rows]
        models.sort(key=lambda model: min(job.priority for job in model.rows.values()))
        live_rows = any(job.priority.is_live for job in self._models.rows)
        with self._wake:
            has_live = live_rows or self._live_leases > 0 or self._queue.has(live=True)
        urgent = [model for model in models if not model.has_bulk_only]
        if urgent and self._bulk_share.behind_s <= 0:
            models = urgent
        for model in models:
            self._step_one(model, LIVE_BEGIN_S / len(models) if has_live else None)

    def _step_one(self, model: ServedModel, begin_s: float | None) -> None:
        self._heartbeat.touch()
        rows, is_bulk = list(model.rows.values()), model.has_bulk_only
        began_s, request_s, time_spent = self.clock(), self.request_clock.now_s(), StepTime(rows, self.clock)
        # The context of the only row; an empty one if several rows share the step.
        context = rows[0].context if len(rows) == 1 else Context()
        try:
            context.run(self._run_step, model, time_spent, begin_s)
        except Exception as error:  # the row at fault is unknown: all remaining ones fail
            for job in list(model.rows.values()):
                model.batch.drop(job.key)
                self._hand_out(job, RowFailed(job.key, error))
        time_spent.end()
        took_s = self.clock() - began_s
        self._watch.stepped(len(rows), took_s)
        if time_spent.has_recordings:
            self._with_recordings_s += self.request_clock.now_s() - request_s
        with self._wake:
            self._share.charge(time_spent.live_s, time_spent.recordings_s, is_wanted=self._has_recordings())
        has_bulk = is_bulk or any(other.has_bulk_only for other in self._models.values())
        self._bulk_share.charge(0.0 if is_bulk else took_s, took_s if is_bulk else 0.0, is_wanted=has_bulk)
        model.idle.touch()

    def _run_step(self, model: ServedModel, time_spent: StepTime, begin_s: float | None) -> None:
        for outcome in model.batch.step(begin_s):
            # A step may be several passes: each outcome shows that the accelerator makes progress.
            self._heartbeat.touch()
            # Hand it out at once, which removes an ended row: if the step raises later, no row ends twice.
            if (job := model.rows.get(outcome.key)) is not None:
                time_spent.on_outcome(job)
                self._hand_out(job, outcome)

    def _hand_out(self, job: AnyJob, outcome: Outcome) -> None:
        job.begun = True
        match outcome:
            case RowDelta(value=value):
                job.hand_out(value)
            case RowDone(value=value):
                self._remove(job)
                self._note_end(job, JobEnd.DONE, value)
                job.succeed(value)
            case RowFailed(error=error):
                self._remove(job)
                self._fail(job, error)

    def _fail(self, job: AnyJob, error: Exception) -> None:
        if isinstance(error, EngineFailed):
            self._note_failure(error)
        if job.item is not None:
            self._note_end(job, JobEnd.FAILED)
        job.fail(error)

    def _note_failure(self, error: EngineFailed) -> None:
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    def _remove(self, job: AnyJob) -> None:
        job.ended_s = self.clock()
        with self._wake:  # `snapshot` reads the rows on other threads
            self._models[job.model].rows.pop(job.key, None)

    def _end(self) -> None:
        # `_stopping` or `_failure` is set: no job can arrive after this drain.
        with self._wake:
            left = self._queue.drain() + self._models.rows
        error = self._failure or ShuttingDown()
        for job in left:
            if self._failure is None:  # a failed engine's batch is not touched any more
                self._models[job.model].batch.drop(job.key)
            self._fail(job, error)
        if self._failure is None:
            for model in self._models.values():
                model.unload()
