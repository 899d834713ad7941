"""The engine process: the engines on their thread, and the socket at which servers submit rows.

All rows are in the heap of one engine thread, whichever connection they came over, so that it is fair to all.

What two threads touch: events of the engine thread go into `EngineServer._events`, a deque, whose methods are atomic;
`post` says how the event loop learns of them. Everything else is of the event loop.
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

from loguru import logger

from asr_server import engine_core
from asr_server.core.errors import AsrError, EngineFailed, Overloaded
from asr_server.core.idle import keep_heap_trimmed
from asr_server.core.settings import Settings
from asr_server.engine.feature import Plan
from asr_server.engine.handed_out import joined
from asr_server.engine.protocol import Alignment, Hypothesis, Tokens, Utterance
from asr_server.engine_core import EngineCore, Watch
from asr_server.features.engine_process.messages import (
    PUBLISH_S,
    BadFrame,
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
    item_of,
)
from asr_server.schedule.job import AnyJob, Job, Priority
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import SchedulerObserver

# From a change of the state to its publication.
_SOON_S = 0.05
# The longest wait for the state to be published before a model is loaded.
_ANNOUNCE_S = 0.2
# Steps and changes of models that are reported at most; more come only while no server is connected.
_MOST_REPORTS = 4_096
# Rows of one connection. Servers refuse work long before.
_MOST_ROWS = 65_536
# What a server has not read.
_MOST_UNREAD_BYTES = 64 * 1024 * 1024
_PEER = struct.Struct("3i")  # process, user and group; see SO_PEERCRED in unix(7)
_FAILED = 70  # EX_SOFTWARE of sysexits.h, as a server ends whose engine has failed


async def serve(settings: Settings, resolved: Plan, listener: socket.socket) -> None:
    """Take rows at this socket, which is bound, until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = EngineServer(lambda watch: engine_core.build(settings, resolved, watch))
    listening = await loop.create_unix_server(lambda: ServerConnection(server), sock=listener)
    tasks = [asyncio.create_task(server.publish()), asyncio.create_task(keep_heap_trimmed())]
    await ended.wait()
    listening.close()
    for task in tasks:
        task.cancel()
    await asyncio.to_thread(server.core.thread.close)


class EngineServer(SchedulerObserver):
    """The connections of servers to one engine, which `build` makes. Used on one event loop."""

    def __init__(self, build: Callable[[Watch], EngineCore]) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self.rows: dict[int, tuple[ServerConnection, int]] = {}  # by the keys of jobs: whose each is, and its number
        self._steps: deque[tuple[int, float]] = deque(maxlen=_MOST_REPORTS)
        self._changes: deque[tuple[str, ModelState, float]] = deque(maxlen=_MOST_REPORTS)
        self.connections: list[ServerConnection] = []
        self.changed = asyncio.Event()  # set where the state has changed, so that it is published soon
        self.core = build(Watch(self, self._on_state, _end_process))

    # -- called on the engine thread ---------------------------------------------------------------------------------

    def post(self, handle: Callable[..., None], *given: Any) -> None:
        """Call `handle` on the event loop, after what was posted before; from any thread."""
        self._events.append((handle, given))
        # Waking the loop takes the engine thread a system call and the interpreter's lock, so one wake-up serves all
        # that is posted until the loop runs. `_take_events` clears the flag before it looks: what is appended later
        # finds it cleared.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._take_events)

    def started(self, job: AnyJob) -> None:
        # The event loop adds and removes entries meanwhile: to read one is atomic.
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
            # Importing a model's libraries can keep the interpreter's lock for seconds, in which the event loop could
            # not say that a load stops the clock of deadlines.
            published.wait(_ANNOUNCE_S)

    # -- called on the event loop ------------------------------------------------------------------------------------

    def _take_events(self) -> None:
        self._scheduled = False
        while self._events:
            handle, given = self._events.popleft()
            handle(*given)

    async def publish(self) -> None:
        """Send the state to all servers, again and again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_S):
                    await self.changed.wait()
            # What changes comes in groups, and a row that is reported to begin is in the batch a moment later.
            await asyncio.sleep(_SOON_S)
            self._publish()

    def state(self) -> EngineState:
        """Return the present state, without what is reported to one server alone."""
        thread = self.core.thread
        return EngineState(
            snapshot=thread.snapshot(),
            infos={name: engine.info for name, engine in self.core.engines.items()},
            with_recordings_s=thread.with_recordings_s,
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
        # One of the servers gets them: each counts once in the sum of their metrics.
        steps, changes = _all_of(self._steps), _all_of(self._changes)
        for number, connection in enumerate(list(self.connections)):
            connection.send(replace(state, steps=steps, changes=changes) if number == 0 else state)


def _all_of(reports: deque[Any]) -> tuple[Any, ...]:
    """Take out what is there now. The engine thread may append meanwhile."""
    return tuple(reports.popleft() for _ in range(len(reports)))


class ServerConnection(Frames):
    """The connection of one server, with its rows and leases, which end with it. Used on the event loop."""

    def __init__(self, server: EngineServer) -> None:
        super().__init__(self._take, self._end)
        self._server = server
        self._open = False
        self.rows: dict[int, AnyJob] = {}  # by the numbers that the server gave them
        self._told: dict[int, list[Tokens]] = {}  # by the same numbers, what is not sent yet
        self._leases: dict[tuple[str, bool], ExitStack] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless the peer is of another user."""
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        _, user, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if user != os.getuid():
            logger.warning("a process of another user is refused", user=user)
            transport.close()
            return
        self._open = True
        self._server.connections.append(self)
        self.send(self._server.state())

    def send(self, message: Message, samples: Samples | None = None) -> None:
        """Write a message, unless the connection has ended. A server that does not read loses its connection."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            logger.error("a server does not read what the engine sends")
            self.transport.abort()
            return
        super().send(message, samples)

    def began(self, number: int) -> None:
        """Say that a row is in the batch."""
        if number in self.rows:
            self.send(Began(number))
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

    def _take(self, message: Message, samples: Samples) -> None:
        if isinstance(message, RowMessage):
            self._submit(message, samples)
        elif isinstance(message, CancelMessage):
            self._cancel(message.number)
        elif isinstance(message, Lease) and message.model in self._server.core.engines:
            self._lease(message)
        else:
            raise BadFrame(type(message).__name__)

    def _submit(self, row: RowMessage, samples: Samples) -> None:
        thread = self._server.core.thread
        if row.model not in self._server.core.engines or row.number in self.rows:
            raise BadFrame("a row of no model, or with the number of another")
        item = item_of(row, samples)
        deadline_s = None if row.left_s is None else thread.request_clock.now_s() + row.left_s
        job = Job[Any](
            item, Priority(row.priority), row.cost_s, deadline_s, row.model, row.session, queued_s=row.queued_s
        )
        if isinstance(item, Utterance) and item.stream:
            job.on_delta = lambda tokens: self._server.post(self._tell, row.number, tokens)
        self.rows[row.number] = job
        self._server.rows[job.key] = self, row.number
        job.future.add_done_callback(lambda _: self._server.post(self._answer, job, row.number))
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

    def _lease(self, lease: Lease) -> None:
        key = lease.model, lease.live
        if not lease.held:
            self._leases.pop(key, ExitStack()).close()
        elif key not in self._leases:
            self._leases[key] = held = ExitStack()
            held.enter_context(self._server.core.thread.lease(live=lease.live, model=lease.model))

    def _tell(self, number: int, tokens: Tokens) -> None:
        if number not in self.rows:
            return
        # Sent with what else is posted by now: a fast engine makes more steps than are worth a message.
        self._told.setdefault(number, []).append(tokens)
        if len(self._told) == 1 and len(self._told[number]) == 1:
            self._server.post(self._send_told)

    def _send_told(self) -> None:
        told, self._told = self._told, {}
        for number, parts in told.items():
            tokens = joined(parts)
            self.send(Told(number, tokens.ids, tokens.logprobs, tokens.text))

    def _answer(self, job: AnyJob, number: int) -> None:
        if self.rows.get(number) is not job:
            return  # cancelled
        self._send_told()
        del self.rows[number], self._server.rows[job.key]
        future = job.future
        error = future.exception()
        value = None if error is not None else future.result()
        self.send(
            Ended(
                number,
                job.started_s,
                job.ended_s,
                job.load_s,
                hypothesis=value if isinstance(value, Hypothesis) else None,
                alignment=value if isinstance(value, Alignment) else None,
                error=_described(error) if isinstance(error, AsrError) else None,
            )
        )
        self._server.changed.set()


def _described(error: AsrError) -> RowError:
    return RowError(error.code, error.message, error.param, getattr(error, "retry_after_s", 0))


def _end_process(error: EngineFailed) -> None:
    """End this process. Its server starts another one, and sends the rows again."""
    logger.opt(exception=error).critical("the engine has failed, and its process ends", reason=error.message)
    os._exit(_FAILED)
