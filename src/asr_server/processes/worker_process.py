"""A worker process as seen from the server: start it when it is needed, ask it, end it. One request at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from loguru import logger

from asr_server.core.errors import EngineError, ShuttingDown
from asr_server.core.idle import IdleTimer
from asr_server.processes import messages
from asr_server.processes.caller_work import FairShares, current_caller
from asr_server.processes.launcher import child_environment, python_command
from asr_server.processes.messages import Message

# Loading takes a second, or many seconds from a slow disk. Even a request with little work may take `_LATE_S` while
# other processes keep the machine busy.
_START_S, _LATE_S = 60.0, 15.0


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a process."""

    module: str  # that the process runs
    purpose: str  # a verb with its object, for messages
    unavailable: type[EngineError]  # raised for all who use a lost process


class WorkerProcess:
    """A running process, or one that has ended. For one event loop."""

    def __init__(self, work: Work, child: asyncio.subprocess.Process) -> None:
        self.work, self._child = work, child
        self._order = FairShares(1, 1)
        self._has_answered = False
        self._dropped: list[int] = []  # streams that are not needed any more; the next request lists them
        self._exchange: asyncio.Task[Message] | None = None

    @classmethod
    async def start(cls, work: Work, *arguments: str) -> WorkerProcess:
        """Start a process for this work. Raises `unavailable`."""
        try:
            child = await asyncio.create_subprocess_exec(
                *python_command(work.module, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=child_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the server
            )
        except OSError as error:
            raise work.unavailable(f"The process that {work.purpose} cannot be started.") from error
        return cls(work, child)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.returncode is None

    async def request(
        self, content: dict[str, Any], data: bytes = b"", *, is_live: bool = False, work_s: float = 0.0
    ) -> Message:
        """Return the answer to one request. Raises `unavailable`. An answer that takes much longer than `work_s`, the
        most that the work may take, ends the process, and all requests that wait raise it too.

        Cancelling returns at once. A request that was sent is still answered before the next one is sent.
        """
        caller = current_caller.get()
        await self._order.take(caller, urgent=is_live)
        # A task of its own, which no caller can cancel: an unread answer would be taken for that of the next one.
        self._exchange = exchange = asyncio.create_task(self._exchanged(content, data, work_s))
        exchange.add_done_callback(partial(self._on_exchanged, caller))
        return await asyncio.shield(exchange)

    def drop(self, number: int) -> None:
        self._dropped.append(number)

    async def end(self) -> None:
        """Kill the process. Requests in progress raise `unavailable`."""
        await self._kill()
        if self._exchange is not None:
            await asyncio.wait([self._exchange])

    def _on_exchanged(self, caller: str, exchange: asyncio.Task[Message]) -> None:
        self._order.give_back(caller)
        if not exchange.cancelled():
            exchange.exception()  # marks it as retrieved: its caller may be gone

    async def _exchanged(self, content: dict[str, Any], data: bytes, work_s: float) -> Message:
        dropped, self._dropped = self._dropped, []  # taken before the first `await`, so that no other request has them
        message = messages.packed({**content, "dropped": dropped}, data)
        try:
            if not self.is_running:
                raise BrokenPipeError
            async with asyncio.timeout(_LATE_S + work_s + (0 if self._has_answered else _START_S)):
                answer = await self._sent(message)
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError) as error:
            if self.is_running:
                logger.warning(f"the process that {self.work.purpose} was lost", error=type(error).__name__)
            await self._kill()
            raise self.work.unavailable(f"The process that {self.work.purpose} was lost; try again.") from error
        self._has_answered = True
        return answer

    async def _sent(self, message: bytes) -> Message:
        requests, answers = self._child.stdin, self._child.stdout
        assert requests is not None
        assert answers is not None
        requests.write(message)
        await requests.drain()
        text_bytes, data_bytes = messages.sizes(await answers.readexactly(messages.HEADER.size))
        content = messages.content(await answers.readexactly(text_bytes))
        return Message(content, await answers.readexactly(data_bytes))

    async def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            self._child.kill()
        await self._child.wait()


class WorkerStream:
    """Something that a process keeps until it is closed, such as an unfinished file."""

    def __init__(self, process: WorkerProcess, number: int, idle: IdleTimer) -> None:
        """`idle` is held until the stream is closed."""
        self.process, self._number, self._idle = process, number, idle
        self._closed = False
        idle.hold()

    async def request(
        self, content: dict[str, Any], data: bytes = b"", *, is_live: bool = False, work_s: float = 0.0
    ) -> Message:
        """Send a request with the number of this stream. See `WorkerProcess.request`."""
        return await self.process.request({**content, "stream": self._number}, data, is_live=is_live, work_s=work_s)

    def close(self) -> None:
        """Drop the stream with the next request to the process. Never waits, so it also works in a cancelled task."""
        if not self._closed:
            self._closed = True
            self.process.drop(self._number)
            self._idle.release()


class WorkerClient:
    """A process that is started when it is needed, and ended when it is idle."""

    def __init__(self, work: Work, idle_timeout_s: float) -> None:
        self._work = work
        self._process: WorkerProcess | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._numbers = itertools.count()
        self.idle = IdleTimer(idle_timeout_s)

    async def arguments(self) -> Sequence[str]:
        return ()

    async def open(self) -> WorkerStream:
        """Return a new stream. Raises `unavailable`, `ShuttingDown`."""
        return WorkerStream(await self._running(), next(self._numbers), self.idle)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.is_running else None

    async def close_idle(self) -> None:
        # Forget the process before ending it: a caller that comes meanwhile starts a new one.
        process, self._process = self._process, None
        if process is not None:
            logger.info(f"the process that {self._work.purpose} was ended", idle_s=round(self.idle.idle_s))
            await process.end()

    async def close(self) -> None:
        """End the process for good. Requests in progress raise `unavailable`, later calls of `open` `ShuttingDown`."""
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    async def _running(self) -> WorkerProcess:
        async with self._starting:  # else callers that arrive together would each start a process
            self._check_open()
            if self._process is None or not self._process.is_running:
                process = await WorkerProcess.start(self._work, *await self.arguments())
                try:
                    self._check_open()  # it may have been closed meanwhile
                except ShuttingDown:
                    await process.end()
                    raise
                self._process = process
            return self._process

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown()
