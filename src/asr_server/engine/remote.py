"""The server's side of an engine in another process: sends rows, and resends them to the next process if it ends.

The server starts the process and supervises it, unless `asr-server engine` runs it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, Overloaded, ShuttingDown, TranscriptionFailed
from asr_server.core.idle import end_when_idle
from asr_server.core.settings import Settings
from asr_server.engine import wire
from asr_server.engine.core import EngineCore, Watch, by_name, speaking
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignerState, AlignItem, EngineInfo, Samples, Tokens, Utterance
from asr_server.processes.supervisor import WELL, Condition, Process, Supervised, Supervisor, starter
from asr_server.schedule.job import DEFAULT, AnyJob, Job, JobEnd, Priority, R, RequestClock
from asr_server.schedule.model import EngineSnapshot, ModelState, ModelStatus

_PROGRAM = ("asr_server", "engine")
_NO_ENGINE = "No engine answers at the socket of ENGINE_PROCESS: start it with asr-server engine."
# A row that was in the batch of this many processes when they ended is failed: it may be the cause.
_MOST_LOST = 3
# Without a message for this long the process is silent: it publishes every second.
_SILENT_S = 3 * wire.PUBLISH_S
START_S = 60.0  # within which a new engine process must accept work, without its model
_STOP_S = 8.0  # for the process to end; `EngineThread.close` waits for 10


def build(settings: Settings, resolved: Plan, watch: Watch) -> EngineCore:
    """Return engines that compute in another process. Called on the event loop that they are used on."""
    process = EngineProcess(settings, resolved, watch)
    return EngineCore(lambda: process.infos, speaking(resolved), process)


@dataclass(slots=True, eq=False)
class SentRow:
    """A job that has not ended. Passes on each of its tokens once, although a new process, which gets them as the
    forced prefix of the row, sends them again."""

    job: AnyJob
    began: bool = False  # it is in the batch of the current process
    lost: int = 0  # processes that ended while it was in their batch
    _ids: tuple[int, ...] = ()
    _chars: int = 0
    _skip_ids: int = 0
    _skip_chars: int = 0

    def item(self) -> object:
        """Return the item, with the tokens that were passed on as its forced prefix."""
        item = self.job.item
        if not isinstance(item, Utterance) or len(self._ids) <= len(item.prefix):
            return item
        return replace(item, prefix=self._ids, prefix_text=None)

    def begin_again(self) -> None:
        self.began, self._skip_ids, self._skip_chars = False, len(self._ids), self._chars

    def pass_on(self, tokens: Tokens) -> None:
        new = Tokens(tokens.ids[self._skip_ids :], tokens.logprobs[self._skip_ids :], tokens.text[self._skip_chars :])
        self._skip_ids -= len(tokens.ids) - len(new.ids)
        self._skip_chars -= len(tokens.text) - len(new.text)
        if new.ids or new.text:
            self._ids += new.ids
            self._chars += len(new.text)
            self.job.hand_out(new)


class _SharedEngine:
    """Implements `Process` for an engine that `asr-server engine` runs. It lasts as long as the connection to it."""

    pid = os.getpid()

    def __init__(self, process: EngineProcess) -> None:
        self._process, self.lost = process, asyncio.Event()

    async def begin(self, listener: socket.socket) -> Process:
        self.lost.clear()
        return self

    async def wait(self) -> int:
        await self.lost.wait()
        return 0

    def kill(self) -> None:
        if not self._process.disconnect() and not self.lost.is_set():
            self._process.refuse(_NO_ENGINE)
        self.lost.set()

    terminate = kill


class EngineProcess:
    """A `Scheduler` whose jobs run in another process, in one queue and one batch with the jobs of its other servers.

    The first row starts the process. With GATEWAY_MODE it ends when no row and no lease has needed it for IDLE_TIMEOUT.
    If `asr-server engine` runs the engine, this server connects at once, and again whenever the engine has ended. Rows
    are sent at once and kept until they have ended; admission bounds their number.

    Used on the event loop that it is made on, except `snapshot`, `request_clock` and `close`, which any thread may use.
    Observers of the engine are called on the event loop.
    """

    def __init__(self, settings: Settings, resolved: Plan, watch: Watch) -> None:
        self.clock, self.request_clock = time.monotonic, RequestClock(patience_s=settings.request_timeout)
        self._with_recordings_s = 0.0
        self._unloaded = {
            name: EngineInfo(one.engine, one.model_id, one.device, one.dtype, aligner_id=one.aligner_id)
            for name, one in by_name(resolved).items()
        }
        self.infos = self._unloaded
        self._shared_models = resolved.speech_models
        self._models = (*self.infos, *self._shared_models)
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._rows: dict[int, SentRow] = {}  # by the keys of jobs, in the order in which they came
        self._leases: Counter[tuple[str, bool]] = Counter()
        self._connection: wire.Frames | None = None
        self._state: wire.EngineState | None = None  # None while no process answers
        self._state_s = 0.0  # when it arrived, or when the connection was made
        self._closing = False
        self._unavailable = ""  # why no process takes rows, "" while one does or is started
        self._standing = ExitStack()  # open while the clock of requests stands still
        self._load_moved_s: float | None = None
        self._wanted = asyncio.Event()  # set while there are rows
        self._hello = wire.Hello(wire.engine_settings(settings, resolved))
        self._hang_s = hang_s = settings.engine_hang_s
        # The limit of a process that is silent while it may be loading its model: importing the model's libraries can
        # block the whole process, and takes long on a slow disk.
        self._load_s = max(hang_s, settings.request_timeout)
        supervised = Supervised(
            name="engine process",
            spawn=starter(_PROGRAM, settings),
            use=self._use,
            probe=self._probe,
            give_up=self.refuse,
            start_s=START_S,
            stop_s=_STOP_S,
            idle_s=settings.idle_timeout if settings.gateway_mode else 0.0,
            hang_s=hang_s,
        )
        self._shared: _SharedEngine | None = None
        if path := resolved.value("engine_process"):
            self._shared = _SharedEngine(self)
            self._wanted.set()
            supervised = replace(
                supervised, name="connection to the shared engine", spawn=self._shared.begin, path=Path(path)
            )
        self._process = Supervisor(supervised)
        self.ends = self._process.ends  # how many processes ended, by cause
        self._tasks = [
            self._loop.create_task(self._process.run(self._wanted)),
            self._loop.create_task(end_when_idle([self._process], supervised.idle_s)),
        ]

    # -- Scheduler ---------------------------------------------------------------------------------------------------

    def submit(self, job: Job[R]) -> Future[R]:
        if self._closing:
            raise ShuttingDown("The server is shutting down.")
        if self._unavailable:
            raise EngineFailed(self._unavailable)
        job.queued_s = job.queued_s or self.clock()
        self._rows[job.key] = row = SentRow(job)
        job.future.add_done_callback(lambda future: self._leave(job) if future.cancelled() else None)
        self._process.idle.hold()
        self._wanted.set()
        if self._connection is None:
            self._stands_still()  # until a process answers
        self._send_row(row)
        return job.future

    def load(self, model: str = DEFAULT) -> Future[None]:
        return self.submit(Job[None](None, Priority.FINAL, model=model))

    @contextmanager
    def lease(self, *, live: bool = False, model: str = DEFAULT) -> Iterator[None]:
        key = model, live
        self._leases[key] += 1
        self._process.idle.hold()
        if self._leases[key] == 1:
            self._send(wire.Lease(model, live, held=True))
        try:
            yield
        finally:
            self._process.idle.release()
            self._leases[key] -= 1
            if not self._leases[key]:
                del self._leases[key]
                self._send(wire.Lease(model, live, held=False))

    def snapshot(self) -> EngineSnapshot:
        state = self._state
        if state is not None:
            age_s = state.snapshot.heartbeat_age_s + self.clock() - self._state_s
            return replace(state.snapshot, heartbeat_age_s=age_s)
        jobs = [row.job for row in list(self._rows.values())]
        counts = Counter(job.priority for job in jobs)
        # This server does not start a shared engine, so a restart of the server would not bring it back.
        absent = self._unavailable if self._shared else ""
        status = ModelStatus(ModelState.FAILED if absent else ModelState.UNLOADED, absent, 0)
        return EngineSnapshot(
            models=dict.fromkeys(self._models, status),
            running=0,
            depth={priority.name.lower(): counts[priority] for priority in Priority},
            waiting_s=sum(job.cost_s for job in jobs),
            heartbeat_age_s=0.0,
            busy=False,
            alive=not self._closing,
            failure="" if absent else self._unavailable,
        )

    def with_recordings_s(self) -> float:
        return self._with_recordings_s

    @property
    def is_running(self) -> bool:
        return self._state is not None

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10.0)

    # -- the process -------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        self._closing = True
        self._fail_all(ShuttingDown("The server is shutting down."))
        self.disconnect()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    def disconnect(self) -> bool:
        """End the connection. Returns False if there is none."""
        if self._connection is None:
            return False
        self._connection.transport.abort()
        return True

    def refuse(self, reason: str) -> None:
        """Fail all rows, and new rows until a process takes rows again."""
        # An engine's reason for refusing this server says more than that the connection does not last: keep it.
        self._unavailable = self._unavailable or reason
        self._fail_all(EngineFailed(self._unavailable))

    async def _use(self, path: Path) -> None:
        """Send rows over one connection until it ends. Raises OSError while nothing listens there."""
        lost = asyncio.Event()
        connection = wire.Frames(self._take, lost.set)
        await self._loop.create_unix_connection(lambda: connection, str(path))
        self._connection = connection
        self._process.ready()
        self._state_s = self.clock()  # the first state is to come soon
        self._send(self._hello)
        for model, live in self._leases:
            self._send(wire.Lease(model, live, held=True))
        for row in list(self._rows.values()):
            self._send_row(row)
        try:
            await lost.wait()
        finally:
            self.disconnect()
            self._on_lost(connection)

    def _on_lost(self, connection: wire.Frames) -> None:
        """Prepare for the next process: the rows, and, unless this one ended idle, the models that were loaded."""
        loaded = [name for name, model in self.snapshot().models.items() if model.state is ModelState.LOADED]
        was_idle = self._process.is_stopping
        self._connection = self._state = None
        self.infos = self._unloaded
        if self._shared is not None:
            self._shared.lost.set()
        if self._closing:
            return
        if connection.broken is not None:
            logger.opt(exception=connection.broken).error("the engine process sent no message")
            self._process.kill("does not speak the protocol")  # counts as a crash: restarts end if it recurs
        began = [row for row in self._rows.values() if row.began]
        if not was_idle:
            logger.error(
                "the engine process is lost, and the next one gets its rows", rows=len(self._rows), began=len(began)
            )
        for row in began:
            row.begin_again()
            row.lost += 1
            if row.lost == _MOST_LOST:
                self._end(row, TranscriptionFailed("Every engine process that worked on this audio ended."))
        for name in loaded:
            if was_idle:
                self._watch.on_state(name, ModelState.UNLOADED, 0.0)
            else:
                self.load(name)
        if self._rows:
            self._stands_still()
        else:
            self._standing.close()

    def _probe(self) -> Condition:
        """Return the condition of the running process."""
        if self._connection is None:
            return WELL  # it is starting
        snapshot = self.snapshot()
        loading = snapshot.loading or any(info.aligner_state is AlignerState.LOADING for info in self.infos.values())
        if self.clock() - self._state_s > _SILENT_S:
            # A model that is not loaded may begin to load at any moment.
            loaded = not loading and all(model.state is ModelState.LOADED for model in snapshot.models.values())
            return Condition("silent", self._hang_s if loaded else self._load_s)
        stuck = snapshot.is_stuck(_SILENT_S, aligner_loads=loading) or not snapshot.alive
        return Condition("hung", self._hang_s) if stuck else WELL

    # -- messages ----------------------------------------------------------------------------------------------------

    def _send(self, message: wire.Message, samples: Samples | None = None) -> None:
        """Write a message if a process is connected. Otherwise the next one gets all rows and leases from `_use`."""
        if self._connection is not None and not self._connection.transport.is_closing():
            self._connection.send(message, samples)

    def _send_row(self, row: SentRow) -> None:
        job, item = row.job, row.item()
        utterance = item if isinstance(item, Utterance) else None
        span = item if isinstance(item, AlignItem) else None
        samples = item.audio if isinstance(item, Utterance | AlignItem) else None
        shared = None
        if item is not None and samples is None:
            shared, samples = self._shared_models[job.model].pack(item)
        message = wire.SubmitRow(
            job.key, job.priority, job.cost_s, job.model, job.session, job.queued_s, utterance, span, shared
        )
        self._send(message, samples)

    def _take(self, message: wire.Message, samples: Samples) -> None:
        match message:
            case wire.RowStarted(number=number) if number in self._rows:
                self._rows[number].began = True
            case wire.TokensSent(number=number, tokens=tokens) if number in self._rows:
                self._rows[number].pass_on(tokens)
            case wire.RowFinished(number=number) if number in self._rows:
                self._take_end(self._rows[number], message, samples)
            case wire.EngineState():
                self._take_state(message)
            case wire.ServerRefused(reason=reason):
                logger.error("the engine refuses this server", reason=reason)
                self._unavailable = ""
                self.refuse(reason)

    def _take_end(self, row: SentRow, message: wire.RowFinished, samples: Samples) -> None:
        if message.error is not None and message.error.code == ShuttingDown.code:
            row.begin_again()  # only the engine process shuts down, not this server: the next process gets the row
            return
        job = row.job
        job.started_s, job.ended_s, job.load_s = message.started_s, message.ended_s, message.load_s
        if job.item is not None and job.started_s:
            (job.observer or self._watch.engine).started(job)
        if message.error is not None:
            self._end(row, _error(message.error))
            return
        self._process.served()
        self._forget(job)
        value: Any = message.hypothesis if message.hypothesis is not None else message.alignment
        if message.shared is not None:
            value = self._shared_models[job.model].unpack((message.shared, None))
            # All at once: otherwise the output of a process that ended would be repeated.
            job.hand_out(samples)
        if job.item is not None:
            (job.observer or self._watch.engine).ended(job, JobEnd.DONE, value)
        job.succeed(value)

    def _take_state(self, state: wire.EngineState) -> None:
        self._state, self._state_s = state, self.clock()
        self._unavailable = ""
        self.infos = state.infos
        self._with_recordings_s = state.with_recordings_s
        # The engine announces a load a moment before its clock stops, and may hold the interpreter's lock from then on.
        if state.load_moved_s is None and not state.snapshot.loading:
            self._standing.close()
        elif self.request_clock.load_moved_s is None or state.load_moved_s != self._load_moved_s:
            self._load_moved_s = state.load_moved_s
            self._stands_still()
        for rows, took_s in state.steps:
            self._watch.engine.stepped(rows, took_s)
        for model, changed, took_s in state.changes:
            self._watch.on_state(model, changed, took_s)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _leave(self, job: AnyJob) -> None:
        if job.key in self._rows:
            self._forget(job)
            self._send(wire.CancelRow(job.key))
            self._observe_failure(job, job.why_cancelled(self.request_clock.now_s()))

    def _forget(self, job: AnyJob) -> None:
        del self._rows[job.key]
        self._process.idle.release()
        if not self._rows and self._shared is None:
            self._wanted.clear()

    def _end(self, row: SentRow, error: AsrError) -> None:
        self._forget(row.job)
        self._observe_failure(row.job, JobEnd.FAILED)
        row.job.fail(error)

    def _observe_failure(self, job: AnyJob, end: JobEnd) -> None:
        if job.item is not None:
            (job.observer or self._watch.engine).ended(job, end)

    def _fail_all(self, error: AsrError) -> None:
        for row in list(self._rows.values()):
            self._end(row, error)

    def _stands_still(self) -> None:
        """Stop the request clock while a model loads or a process starts. Call it again at each sign of progress."""
        if self.request_clock.load_moved_s is None:
            self._standing.enter_context(self.request_clock.loading())
        self.request_clock.progress()


def _error(error: wire.RowError) -> AsrError:
    if error.code == Overloaded.code:
        return Overloaded(error.message, retry_after_s=error.retry_after_s)
    return AsrError.of(error.code, error.message, error.param)
