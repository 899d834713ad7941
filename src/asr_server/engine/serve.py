"""The engine process: the engines on their thread, and the socket at which servers submit rows.

All rows are in the queue of one engine thread, which divides its time fairly between the connections.

The engine thread appends to three deques of `EngineServer`, whose methods are atomic, and reads its `rows`; `post` says
how the event loop learns of events. Everything else belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, Overloaded
from asr_server.core.idle import keep_heap_trimmed
from asr_server.core.settings import Settings
from asr_server.engine import core, wire
from asr_server.engine.core import Watch
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignerState, Alignment, Hypothesis, Samples, Tokens, Utterance
from asr_server.schedule.job import AnyJob, Job, Priority, SchedulerObserver
from asr_server.schedule.model import ModelState

# The delay from a change of the state to its publication.
_SOON_S = 0.05
# The longest wait for the state to be published before a model is loaded.
_ANNOUNCE_S = 0.2
# The most steps and changes of models in one report. If there are more, the oldest are dropped.
_MOST_REPORTS = 4_096
# The most rows of one connection. Servers refuse work long before that.
_MOST_ROWS = 65_536
# The most bytes that a server may leave unread.
_MOST_UNREAD_BYTES = 64 * 1024 * 1024
_PEER = struct.Struct("3i")  # process, user and group; see SO_PEERCRED in unix(7)
_FAILED = 70  # EX_SOFTWARE of sysexits.h, also the exit code of a server whose engine has failed


async def serve(settings: Settings, resolved: Plan, listener: socket.socket, *, is_child: bool) -> None:
    """Take rows at this bound socket until SIGTERM. The servers keep the rows that have no answer by then.

    `is_child`: the server is the parent, and watches this process.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    server = EngineServer(settings, resolved)
    listening = await loop.create_unix_server(lambda: ServerConnection(server), sock=listener)
    tasks = [asyncio.create_task(server.publish()), asyncio.create_task(keep_heap_trimmed())]
    if not is_child:
        tasks.append(asyncio.create_task(server.end_when_stuck(settings.engine_hang_s)))
    if settings.preload:
        server.core.thread.load()
    await ended.wait()
    listening.close()
    for task in tasks:
        task.cancel()
    await asyncio.to_thread(server.core.thread.close)


class EngineServer(SchedulerObserver):
    """The connections of servers to one engine. Used on one event loop."""

    def __init__(self, settings: Settings, resolved: Plan) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self.rows: dict[int, tuple[ServerConnection, int]] = {}  # each row's connection and number, by its job's key
        self._steps: deque[tuple[int, float]] = deque(maxlen=_MOST_REPORTS)
        self._changes: deque[tuple[str, ModelState, float]] = deque(maxlen=_MOST_REPORTS)
        self.connections: list[ServerConnection] = []
        self.changed = asyncio.Event()  # set when the state has changed, so that it is published soon
        self.settings = wire.engine_settings(settings, resolved)
        self.core = core.build(settings, resolved, Watch(self, self._on_state, _end_process))
        self.models = {*self.core.infos(), *self.core.speaking}
        self.shared_models = resolved.speech_models

    # -- called on the engine thread ---------------------------------------------------------------------------------

    def post(self, handle: Callable[..., None], *given: Any) -> None:
        """Call `handle` on the event loop, after all earlier posts. Any thread may call this."""
        self._events.append((handle, given))
        # To wake the loop, the engine thread needs a system call and the interpreter's lock, so one wake-up serves all
        # posts until the loop runs. `_take_events` clears the flag before it reads events: a later post finds it
        # cleared.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._take_events)

    def started(self, job: AnyJob) -> None:
        # The event loop may add and remove entries meanwhile. Reading one is atomic.
        if (row := self.rows.get(job.key)) is not None:
            connection, number = row
            self.post(connection.began, number)

    def stepped(self, rows: int, took_s: float) -> None:
        self._steps.append((rows, took_s))

    def _on_state(self, model: str, state: ModelState, took_s: float) -> None:
        self._changes.append((model, state, took_s))
        published = threading.Event()
        self.post(self._announce, published)
        if state is ModelState.LOADING:
            # Importing a model's libraries can hold the interpreter's lock for seconds. The event loop could not report
            # in that time that a load stops the clock of deadlines.
            published.wait(_ANNOUNCE_S)

    # -- called on the event loop ------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        self._scheduled = False
        while self._events:
            handle, given = self._events.popleft()
            handle(*given)

    async def publish(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wire.PUBLISH_S):
                    await self.changed.wait()
            # Changes come in groups, and a row is in the batch only a moment after its start is reported.
            await asyncio.sleep(_SOON_S)
            self._publish()

    async def end_when_stuck(self, hang_s: float) -> None:
        """End the process if its engine makes no progress, so that whatever runs it starts another one."""
        while True:
            await asyncio.sleep(hang_s / 4)
            aligner_loads = any(info.aligner_state is AlignerState.LOADING for info in self.core.infos().values())
            if self.core.thread.snapshot().is_stuck(hang_s, aligner_loads=aligner_loads):
                _end_process(EngineFailed("The engine makes no progress."))

    def state(self) -> wire.EngineState:
        """Return the current state, without the steps and changes, which only one server gets."""
        thread = self.core.thread
        return wire.EngineState(
            snapshot=thread.snapshot(),
            infos=dict(self.core.infos()),
            with_recordings_s=thread.with_recordings_s(),
            load_moved_s=thread.request_clock.load_moved_s,
            steps=(),
            changes=(),
        )

    def _announce(self, published: threading.Event) -> None:
        self._publish()
        self._loop.call_soon(published.set)  # transports write at the end of this round of the loop

    def _publish(self) -> None:
        self.changed.clear()
        state = self.state()
        # Only one server gets them: each counts once in the sum of all metrics. The engine thread may append more.
        steps = tuple(self._steps.popleft() for _ in range(len(self._steps)))
        changes = tuple(self._changes.popleft() for _ in range(len(self._changes)))
        for number, connection in enumerate(list(self.connections)):
            connection.send(replace(state, steps=steps, changes=changes) if number == 0 else state)


class ServerConnection(wire.Frames):
    """The connection of one server, with its rows and leases, which end with it. Used on the event loop."""

    def __init__(self, server: EngineServer) -> None:
        super().__init__(self._take, self._end)
        self._server = server
        self._open = False  # set by a `Hello` with the settings of this engine
        self.rows: dict[int, AnyJob] = {}  # by the numbers that the server gave them
        self._told: dict[int, list[Tokens]] = {}  # by the same numbers, tokens that are not sent yet
        self._leases: dict[tuple[str, bool], ExitStack] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close the connection if the peer is a process of another user."""
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        _, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.getuid():
            logger.warning("a process of another user is refused", user=user)
            transport.close()

    def send(self, message: wire.Message, samples: Samples | None = None) -> None:
        """Write a message, unless the connection has ended. A server that does not read loses its connection."""
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            logger.error("a server does not read what the engine sends")
            self.transport.abort()
            return
        super().send(message, samples)

    def began(self, number: int) -> None:
        if number in self.rows:
            self.send(wire.RowStarted(number))
            self._server.changed.set()

    def _end(self) -> None:
        if not self._open:
            return
        self._server.connections.remove(self)
        if self.broken is not None:
            logger.opt(exception=self.broken).error("a server sent no message")
        if self.rows:
            logger.warning("a server has gone, and its rows are dropped", rows=len(self.rows))
        for number in list(self.rows):
            self._cancel(number)
        for lease in self._leases.values():
            lease.close()

    def _take(self, message: wire.Message, samples: Samples) -> None:
        if not self._open:
            self._greet(message)
        elif isinstance(message, wire.SubmitRow):
            self._submit(message, samples)
        elif isinstance(message, wire.CancelRow):
            self._cancel(message.number)
        elif isinstance(message, wire.Lease) and message.model in self._server.models:
            self._lease(message)
        else:
            raise ValueError(type(message).__name__)

    def _greet(self, message: wire.Message) -> None:
        if self.transport.is_closing():
            return
        if not isinstance(message, wire.Hello):
            raise ValueError(type(message).__name__)
        ours, theirs = self._server.settings, message.settings
        if unlike := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
            reason = f"The engine has another {', '.join(unlike)} than this server: give both the same."
            logger.error("a server is refused", reason=reason)
            self.send(wire.ServerRefused(reason))
            self.transport.close()
            return
        self._open = True
        self._server.connections.append(self)
        self.send(self._server.state())

    def _submit(self, row: wire.SubmitRow, samples: Samples) -> None:
        thread = self._server.core.thread
        if row.model not in self._server.models or row.number in self.rows:
            raise ValueError("a row of no model, or with the number of another")
        item: Any = row.utterance or row.align
        if item is not None:
            item = replace(item, audio=samples)
        given: list[Any] = []
        if row.shared is not None and row.model in self._server.shared_models:
            item = self._server.shared_models[row.model].unpack((row.shared, samples))
        job = Job[Any](item, Priority(row.priority), row.cost_s, None, row.model, id(self), row.session)
        job.queued_s = row.queued_s
        if isinstance(item, Utterance) and item.stream:
            job.on_delta = lambda tokens: self._server.post(self._tell, row.number, tokens)
        elif row.shared is not None:
            job.on_delta = given.append
        self.rows[row.number] = job
        self._server.rows[job.key] = self, row.number
        job.future.add_done_callback(lambda _: self._server.post(self._answer, job, row.number, given))
        try:
            if len(self.rows) > _MOST_ROWS:
                raise Overloaded("The engine has all the rows that it can keep.")
            thread.submit(job)
        except AsrError as error:
            job.fail(error)
        self._server.changed.set()

    def _cancel(self, number: int) -> None:
        if (job := self.rows.pop(number, None)) is not None:
            del self._server.rows[job.key]
            self._told.pop(number, None)
            job.future.cancel()
            self._server.changed.set()

    def _lease(self, lease: wire.Lease) -> None:
        key = lease.model, lease.live
        if not lease.held:
            self._leases.pop(key, ExitStack()).close()
        elif key not in self._leases:
            self._leases[key] = held = ExitStack()
            held.enter_context(self._server.core.thread.lease(live=lease.live, model=lease.model))

    def _tell(self, number: int, tokens: Tokens) -> None:
        if number not in self.rows:
            return
        # Sent together with all tokens posted by now: a fast engine makes too many steps to send a message for each.
        self._told.setdefault(number, []).append(tokens)
        if len(self._told) == 1 and len(self._told[number]) == 1:
            self._server.post(self._send_told)

    def _send_told(self) -> None:
        told, self._told = self._told, {}
        for number, parts in told.items():
            self.send(wire.TokensSent(number, _joined(parts)))

    def _answer(self, job: AnyJob, number: int, given: list[Any]) -> None:
        if self.rows.get(number) is not job:
            return  # cancelled
        self._send_told()
        del self.rows[number], self._server.rows[job.key]
        future = job.future
        error = future.exception()
        value = None if error is not None else future.result()
        shared = None
        if value is not None and job.model in self._server.shared_models:
            shared, _ = self._server.shared_models[job.model].pack(value)
        self.send(
            wire.RowFinished(
                number,
                job.started_s,
                job.ended_s,
                job.load_s,
                hypothesis=value if isinstance(value, Hypothesis) else None,
                alignment=value if isinstance(value, Alignment) else None,
                shared=shared,
                error=_described(error) if isinstance(error, AsrError) else None,
            ),
            np.concatenate(given) if shared is not None and given else None,
        )
        self._server.changed.set()


def _joined(parts: list[Tokens]) -> Tokens:
    """Return the deltas of several steps as one."""
    ids = tuple(token for part in parts for token in part.ids)
    logprobs = tuple(one for part in parts for one in part.logprobs)
    return Tokens(ids, logprobs, "".join(part.text for part in parts))


def _described(error: AsrError) -> wire.RowError:
    return wire.RowError(error.code, error.message, error.param, getattr(error, "retry_after_s", 0))


def _end_process(error: EngineFailed) -> None:
    """End this process. Its server starts another one, and sends the rows again."""
    logger.opt(exception=error).critical("the engine has failed, and its process ends", reason=error.message)
    os._exit(_FAILED)
