"""The server's end of the engine process: starts it, sends it rows, and sends them again if it dies."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from loguru import logger

from asr_server.core.errors import (
    AsrError,
    DeadlineExceeded,
    EngineFailed,
    Overloaded,
    ShuttingDown,
    TranscriptionFailed,
    WorkerUnavailable,
    leaves,
)
from asr_server.core.settings import Settings
from asr_server.engine.feature import Plan
from asr_server.engine.handed_out import HandedOut
from asr_server.engine.protocol import AlignerState, AlignItem, EngineInfo, Tokens, Utterance
from asr_server.engine_core import EngineCore, Watch, by_name
from asr_server.features.engine_process.messages import (
    PUBLISH_S,
    Began,
    CancelMessage,
    Ended,
    EngineState,
    Frames,
    Lease,
    Message,
    RowError,
    RowMessage,
    Samples,
    Told,
    fields_of,
)
from asr_server.features.gateway.child import child_environment, starter
from asr_server.features.gateway.hang_detector import HangConfig, ProbeResult
from asr_server.features.gateway.worker import PROBE_PAUSE_S, Worker, WorkerConfig, WorkerConnection
from asr_server.ops.metric_spec import WorkerEnd
from asr_server.schedule.job import DEFAULT, AnyJob, Job, Priority, R, RequestClock
from asr_server.schedule.model import EngineSnapshot, ModelState, ModelStatus
from asr_server.schedule.ports import JobEnd

_PROGRAM = ("asr_server.features.engine_process",)
# A row that was in the batch of this many processes when they ended may be what ends them.
_MOST_LOST = 3
# Without a message for this long the process is silent: it publishes every second.
_SILENT_S = 3 * PUBLISH_S
_STOP_S = 8.0  # for the process to end; `EngineThread.close` waits for 10
_RETRY_S = 1.0  # between two looks whether a process that did not stay up may be started again
_ERRORS = {leaf.code: leaf for leaf in leaves()}


def build(settings: Settings, resolved: Plan, watch: Watch) -> EngineCore:
    """Return engines whose rows are computed in a process of their own, which is started now. Called on the event loop
    that they are used on."""
    process = EngineProcess(settings, resolved, watch)
    engines = {name: _Facts(process, name) for name in by_name(resolved)}
    return EngineCore(engines, {}, process)


class _Facts:
    """The facts about one engine of the process, as last published."""

    def __init__(self, process: EngineProcess, name: str) -> None:
        self._process, self._name = process, name

    @property
    def info(self) -> EngineInfo:
        """Return them."""
        return self._process.infos[self._name]


@dataclass(slots=True, eq=False)
class _SentRow:
    """A job without an end."""

    job: AnyJob
    given: HandedOut  # its tokens that have come
    began: bool = False  # it is in the batch of the present process
    lost: int = 0  # processes that ended while it was in their batch


class EngineProcess:
    """A `Scheduler` whose jobs run in another process, in one batch and by one heap with those of all its servers.

    Used on the event loop that it is made on; `snapshot`, `request_clock` and `close` from any thread. Rows are sent at
    once and kept until they have ended: admission bounds how many there are. Observers of the engine are called on the
    event loop.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, settings: Settings, resolved: Plan, watch: Watch) -> None:
        self.request_clock = RequestClock(patience_s=settings.request_timeout)
        self.with_recordings_s = 0.0
        self.infos = {
            name: EngineInfo(one.engine, one.model_id, one.device, one.dtype, aligner_id=one.aligner_id)
            for name, one in by_name(resolved).items()
        }
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._rows: dict[int, _SentRow] = {}  # by the keys of jobs, in the order in which they came
        self._leases: Counter[tuple[str, bool]] = Counter()
        self._connection: Frames | None = None
        self._state: EngineState | None = None  # None while no process answers
        self._state_s = 0.0  # when it came, or when the process was connected to
        self._closing = False
        self._unavailable = ""  # why no process runs, "" while one does or is started
        self._load: ExitStack | None = None  # open while the clock of requests stands still
        self._load_moved_s: float | None = None
        self._stands_still()  # until the first process answers
        self._worker = _supervisor(settings)
        hang_s = settings.engine_hang_s
        limits = HangConfig(hang_s, max(hang_s, settings.request_timeout), probe_s=PROBE_PAUSE_S + _SILENT_S)
        self._tasks = [
            self._loop.create_task(self._keep_connected()),
            self._loop.create_task(self._worker.end_when_hung(self._probe, limits)),
        ]

    # -- Scheduler ---------------------------------------------------------------------------------------------------

    def submit(self, job: Job[R]) -> Future[R]:
        """Send a job; its future gets the result, or the error. To leave, cancel the future.

        Raises `ShuttingDown` when no new work is taken, `EngineFailed` while the process does not stay up.
        """
        if self._closing:
            raise ShuttingDown("The server is shutting down.")
        if self._unavailable:
            raise EngineFailed(self._unavailable)
        job.queued_s = job.queued_s or self.clock()
        self._rows[job.key] = row = _SentRow(job, HandedOut(lambda tokens: _deliver(job, tokens)))
        job.future.add_done_callback(lambda future: self._leave(job) if future.cancelled() else None)
        self._send_row(row)
        return job.future

    def load(self, model: str = DEFAULT) -> Future[None]:
        """Load a model before other work, unless it is loaded. Raises as `submit` does."""
        return self.submit(Job[None](None, Priority.FINAL, model=model))

    @contextmanager
    def lease(self, *, live: bool = False, model: str = DEFAULT) -> Iterator[None]:
        """Keep a model loaded until the block ends, where memory allows."""
        key = model, live
        self._leases[key] += 1
        if self._leases[key] == 1:
            self._send(Lease(model, live, held=True))
        try:
            yield
        finally:
            self._leases[key] -= 1
            if not self._leases[key]:
                del self._leases[key]
                self._send(Lease(model, live, held=False))

    def snapshot(self) -> EngineSnapshot:
        """Return the state as last published; never waits."""
        state = self._state
        if state is not None:
            age_s = state.snapshot.heartbeat_age_s + self.clock() - self._state_s
            return replace(state.snapshot, heartbeat_age_s=age_s)
        jobs = [row.job for row in list(self._rows.values())]
        counts = Counter(job.priority for job in jobs)
        return EngineSnapshot(
            models=dict.fromkeys(self.infos, ModelStatus(ModelState.UNLOADED, "", 0)),
            running=0,
            depth={priority.name.lower(): counts[priority] for priority in Priority},
            waiting_s=sum(job.cost_s for job in jobs),
            heartbeat_age_s=0.0,
            busy=False,
            alive=not self._closing,
            failure=self._unavailable,
        )

    @property
    def ends(self) -> Mapping[WorkerEnd, int]:
        """Return how many processes have ended, by the cause."""
        return self._worker.ends

    def close(self, timeout_s: float = 10.0) -> None:
        """Take no more work, fail all jobs with `ShuttingDown`, and end the process. Not called on the event loop."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout_s)

    # -- the process -------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()
        self._fail_all(ShuttingDown("The server is shutting down."))
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.close()
        await self._worker.drain()

    async def _keep_connected(self) -> None:
        """Have a process as long as this server runs."""
        while True:
            try:
                worker = await self._worker.running()
            except WorkerUnavailable as error:
                self._unavailable = error.message
                self._fail_all(EngineFailed(error.message))
                await asyncio.sleep(_RETRY_S)
                continue
            except ShuttingDown:
                return
            self._unavailable = ""
            await self._use(worker)

    async def _use(self, worker: WorkerConnection) -> None:
        """Send rows over one connection until it ends."""
        lost = asyncio.Event()
        connection = Frames(self._take, lost.set)
        try:
            await self._loop.create_unix_connection(lambda: connection, str(worker.socket))
        except OSError:  # it has just ended
            await self._worker.lost(worker)
            return
        self._connection = connection
        self._state_s = self.clock()  # the first state is to come soon
        for model, live in self._leases:
            self._send(Lease(model, live, held=True))
        for row in list(self._rows.values()):
            self._send_row(row)
        await lost.wait()
        self._on_lost(connection)
        await self._worker.lost(worker)

    def _on_lost(self, connection: Frames) -> None:
        """Prepare what the next process gets: the rows, and the models that were loaded."""
        snapshot = self.snapshot()
        self._connection = self._state = None
        self._stands_still()
        if connection.broken is not None:
            logger.opt(exception=connection.broken).error("the engine process sent no message")
            self._worker.kill("does not speak the protocol")  # the restarts of a process that always does this end
        began = [row for row in self._rows.values() if row.began]
        logger.error(
            "the engine process is lost, and the next one gets its rows", rows=len(self._rows), began=len(began)
        )
        for row in began:
            row.began = False
            row.lost += 1
            row.given.begin_again()
            if row.lost == _MOST_LOST:
                self._end(row, TranscriptionFailed("Every engine process that worked on this audio ended."))
        for name, model in snapshot.models.items():
            if model.state is ModelState.LOADED:
                self.load(name)

    async def _probe(self, _: WorkerConnection) -> ProbeResult:
        """Return the state of the process for a `HangDetector`."""
        if self._connection is None:
            return ProbeResult.LOADING  # it starts
        if self.clock() - self._state_s > _SILENT_S:
            return ProbeResult.SILENT
        snapshot = self.snapshot()
        loading = snapshot.loading or any(info.aligner_state is AlignerState.LOADING for info in self.infos.values())
        is_stuck = snapshot.busy and snapshot.heartbeat_age_s > _SILENT_S and not loading
        if is_stuck or not snapshot.alive:
            return ProbeResult.HUNG
        # A model that is not loaded may be at any moment.
        loaded = not loading and all(model.state is ModelState.LOADED for model in snapshot.models.values())
        return ProbeResult.HEALTHY if loaded else ProbeResult.LOADING

    # -- messages ----------------------------------------------------------------------------------------------------

    def _send(self, message: Message, samples: Samples | None = None) -> None:
        """Write a message if a process is there. Otherwise the next one gets all that counts when it is there."""
        connection = self._connection
        if connection is not None and connection.transport is not None and not connection.transport.is_closing():
            connection.send(message, samples)

    def _send_row(self, row: _SentRow) -> None:
        job = row.job
        item = row.given.resumed(job.item) if isinstance(job.item, Utterance) else job.item
        utterance = fields_of(item) if isinstance(item, Utterance) else None
        span = fields_of(item) if isinstance(item, AlignItem) else None
        assert item is None or utterance is not None or span is not None, type(item)
        # A deadline that moves ends its row by cancelling it.
        left_s = job.deadline_s - self.request_clock.now_s() if isinstance(job.deadline_s, float) else None
        message = RowMessage(
            job.key, job.priority, job.cost_s, left_s, job.model, job.session, job.queued_s, utterance, span
        )
        self._send(message, item.audio if isinstance(item, Utterance | AlignItem) else None)

    def _take(self, message: Message, _: Samples) -> None:
        match message:
            case Began(number=number) if number in self._rows:
                self._rows[number].began = True
            case Told(number=number) if number in self._rows:
                self._rows[number].given.hand_out(Tokens(message.ids, message.logprobs, message.text))
            case Ended(number=number) if number in self._rows:
                self._take_end(self._rows[number], message)
            case EngineState():
                self._take_state(message)

    def _take_end(self, row: _SentRow, message: Ended) -> None:
        if message.error is not None and message.error.code == ShuttingDown.code:
            return  # the process was told to end, and this server was not: the next one gets the row
        job = row.job
        job.started_s, job.ended_s, job.load_s = message.started_s, message.ended_s, message.load_s
        if job.item is not None and job.started_s:
            self._watch.engine.started(job)
        if message.error is not None:
            self._end(row, _error(message.error))
            return
        self._worker.served()
        del self._rows[job.key]
        value: Any = message.hypothesis if message.hypothesis is not None else message.alignment
        if job.item is not None:
            self._watch.engine.ended(job, JobEnd.DONE, value)
        job.succeed(value)

    def _take_state(self, state: EngineState) -> None:
        self._state, self._state_s = state, self.clock()
        self.infos = state.infos
        self.with_recordings_s = state.with_recordings_s
        # A load is announced a moment before its clock stops, and may keep the interpreter's lock from then on.
        if state.load_moved_s is None and not state.snapshot.loading:
            self._goes_on()
        elif self._load is None or state.load_moved_s != self._load_moved_s:
            self._load_moved_s = state.load_moved_s
            self._stands_still()
        for rows, took_s in state.steps:
            self._watch.engine.stepped(rows, took_s)
        for model, changed, took_s in state.changes:
            self._watch.on_state(model, changed, took_s)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _leave(self, job: AnyJob) -> None:
        """Forget a job that its caller has cancelled."""
        if self._rows.pop(job.key, None) is not None:
            self._send(CancelMessage(job.key))
            self._observe_failure(job, JobEnd.CANCELLED)

    def _end(self, row: _SentRow, error: AsrError) -> None:
        del self._rows[row.job.key]
        self._observe_failure(row.job, JobEnd.EXPIRED if isinstance(error, DeadlineExceeded) else JobEnd.FAILED)
        row.job.fail(error)

    def _observe_failure(self, job: AnyJob, end: JobEnd) -> None:
        # Callers have the same deadline and cancel at it. Whichever is seen first, it is the deadline that ended it.
        expired = job.expired(self.request_clock.now_s())
        if job.item is not None:
            self._watch.engine.ended(job, JobEnd.EXPIRED if expired and end is JobEnd.CANCELLED else end)

    def _fail_all(self, error: AsrError) -> None:
        for row in list(self._rows.values()):
            self._end(row, error)

    # -- the clock of requests, which stands still while a model is loaded or a process starts ------------------------

    def _stands_still(self) -> None:
        if self._load is None:
            self._load = ExitStack()
            self._load.enter_context(self.request_clock.loading())
        else:
            self.request_clock.progress()

    def _goes_on(self) -> None:
        if self._load is not None:
            self._load.close()
            self._load = None


def _supervisor(settings: Settings) -> Worker:
    async def busy(_: WorkerConnection) -> bool:
        return True  # it is not ended when it is idle

    config = WorkerConfig(settings.worker_start_s, idle_s=0, stop_s=_STOP_S, name="engine process")
    return Worker(starter(_PROGRAM, child_environment(settings)), config, busy)


def _error(error: RowError) -> AsrError:
    kind = _ERRORS.get(error.code, TranscriptionFailed)
    if kind is Overloaded:
        return Overloaded(error.message, retry_after_s=error.retry_after_s)
    return kind(error.message, param=error.param)


def _deliver(job: AnyJob, tokens: Tokens) -> None:
    # Read once: what receives takes it away when the caller cancels.
    if (receive := job.on_delta) is None:
        return
    try:
        receive(tokens)
    except Exception:  # the receiver is at fault, and not the connection that the tokens came over
        job.future.cancel()
