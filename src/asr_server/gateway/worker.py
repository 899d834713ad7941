"""The worker process: started when needed, watched, started again after a crash, ended when idle. Proxies nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import httpx
from loguru import logger

from asr_server.api.metrics.spec import WorkerEnd
from asr_server.core.errors import ShuttingDown, WorkerUnavailable
from asr_server.gateway.hang_detector import HangConfig, HangDetector, ProbeResult
from asr_server.gateway.restart_policy import Decision, RestartConfig, RestartPolicy, WorkerState

_POLL_S = 0.01  # between two attempts to connect to a worker that starts
_LOOK_S = 1.0  # between two looks whether the worker is idle
PAUSE_S = 2.0  # between two looks whether the worker moves
_DEATH_S = 1.0  # between a connection's end and the end of the process that broke it
# The worker keeps idle connections for longer, so it never closes one that is being taken up.
_KEEP_ALIVE_S = 30.0


class Process(Protocol):
    """A started worker."""

    pid: int

    async def wait(self) -> int:
        """The exit code, once it is gone; negative for a signal."""

    def terminate(self) -> None:
        """Ask it to end in order."""

    def kill(self) -> None:
        """End it."""


# Starts a worker that will listen on the socket of that path.
Spawn = Callable[[Path], Awaitable[Process]]


@dataclass(eq=False, slots=True)
class WorkerConnection:
    """One running worker: its socket, and the HTTP connections to it. `gone` is set when the process has ended."""

    number: int
    socket: Path
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    http: httpx.AsyncHTTPTransport = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=_KEEP_ALIVE_S)
        self.http = httpx.AsyncHTTPTransport(uds=str(self.socket), limits=limits, verify=False)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Limits in seconds: to be ready after its start, to live without use (0: for ever), to end in order."""

    start_s: float
    idle_s: float
    stop_s: float = 28.0
    life: RestartConfig = field(default_factory=RestartConfig)


class Worker:
    """At most one worker process. Everything runs on one event loop.

    `busy` asks a running worker whether it has work that no open request shows.
    """

    def __init__(
        self,
        spawn: Spawn,
        rules: WorkerConfig,
        busy: Callable[[WorkerConnection], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn, self._rules, self._busy, self._clock = spawn, rules, busy, clock
        self._life = RestartPolicy(rules.life)
        self._moved = asyncio.Event()
        self._process: Process | None = None
        self._link: WorkerConnection | None = None
        self._run: asyncio.Task[None] | None = None
        self._asked_to_stop = asyncio.Event()
        self._number = self._uses = 0
        self._used_s = clock()
        self._killed_for: WorkerEnd | None = None
        self.starts = 0
        self.ends = dict.fromkeys(WorkerEnd, 0)
        self.draining = False

    @property
    def state(self) -> WorkerState:
        """Where the process is."""
        return self._life.state

    @property
    def link(self) -> WorkerConnection | None:
        """The running worker, if there is one."""
        return self._link if self._life.state is WorkerState.RUNNING else None

    async def running(self) -> WorkerConnection:
        """The running worker, started if there is none. Raises `WorkerUnavailable`, `ShuttingDown`."""
        while True:
            if self.draining:
                raise ShuttingDown("The server is shutting down.")
            match self._life.want(self._clock()):
                case Decision.GO if self._link is not None:
                    return self._link
                case Decision.GIVE_UP:
                    raise WorkerUnavailable("The worker process does not stay up; its last words are in the log.")
                case Decision.START:
                    self._asked_to_stop.clear()
                    self._run = asyncio.create_task(self._keep_running())
            await self._moved.wait()

    async def lost(self, link: WorkerConnection) -> None:
        """A connection to this worker broke: wait until its process is gone too, or it is clear that it lives."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEATH_S):
                await link.gone.wait()

    def served(self) -> None:
        """The worker answered somebody."""
        self._life.served()

    @contextmanager
    def use(self) -> Iterator[None]:
        """While somebody is inside, the worker is not idle."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self._used_s = self._clock()

    async def end_when_idle(self) -> None:
        """End the process whenever nobody has used it for long enough. Runs for ever."""
        while True:
            left_s = self._rules.idle_s if self._uses else self._used_s + self._rules.idle_s - self._clock()
            await asyncio.sleep(min(_LOOK_S, max(_POLL_S, left_s)))
            link = self.link
            if link is None or not self._idle():
                continue
            if await self._busy(link):
                self._used_s = self._clock()
            elif link is self.link and self._idle():
                logger.info("worker idle", idle_s=round(self._clock() - self._used_s, 1))
                await self.stop()

    async def end_when_hung(
        self, look: Callable[[WorkerConnection], Awaitable[ProbeResult]], rules: HangConfig
    ) -> None:
        """Kill the process whenever it has not moved for too long. Runs for ever.

        What follows is what follows a crash.
        """
        pause_s = min(PAUSE_S, rules.hang_s / 4)
        watched: WorkerConnection | None = None
        while True:
            await asyncio.sleep(pause_s)
            if (link := self.link) is None:
                continue
            if link is not watched:
                watched, vigil = link, HangDetector(rules, self._clock())
            sign = await look(link)
            if vigil.sees(sign, self._clock()) and link is self.link:
                self._kill(WorkerEnd.HUNG, "worker hangs and is killed", sign=sign.name.lower(), after_s=rules.hang_s)
                watched = None  # if even that does not end it, it is tried again, and not at every look

    def _kill(self, cause: WorkerEnd, why: str, **details: object) -> None:
        if (process := self._process) is not None:
            logger.error(why, pid=process.pid, **details)
            self._killed_for = cause
            _signal(process.kill)

    async def stop(self) -> None:
        """End the process in order; if it does not end, kill it. Returns when it is gone."""
        self._life.stop()
        self._asked_to_stop.set()
        if (process := self._process) is not None:
            _signal(process.terminate)
        if self._run is None:
            return
        _, late = await asyncio.wait({self._run}, timeout=self._rules.stop_s)
        if late and process is not None:
            logger.error("worker does not end in time and is killed", pid=process.pid)
            _signal(process.kill)
            await asyncio.wait({self._run})

    async def drain(self) -> None:
        """Take no more work, let the worker end what it has, and end it."""
        self.draining = True
        self._move()
        await self.stop()

    def _idle(self) -> bool:
        return not self._uses and self._clock() - self._used_s >= self._rules.idle_s

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _keep_running(self) -> None:
        """One process after another, until one ends on purpose or they do not stay up."""
        wait_s: float | None = 0.0
        while wait_s is not None and self._life.state is WorkerState.STARTING:
            await self._live_once()
            wait_s = self._life.exited(self._clock())
            if self._life.given_up:
                logger.error("worker given up: it does not stay up")
            self._move()
            if wait_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._asked_to_stop.wait()
        if self._life.state is WorkerState.STOPPING:  # asked to while no process ran
            self._life.exited(self._clock())
            self._move()

    async def _live_once(self) -> None:
        """Start a process and stay with it until it is gone."""
        self._number += 1
        began_s = self._clock()
        self._killed_for = None
        self.starts += 1
        with ExitStack() as place:
            try:
                # Nobody else may reach the worker. Each has a folder of its own: systems clear away what lies unused
                # among the temporary files, which it would while the worker sleeps.
                folder = place.enter_context(TemporaryDirectory(prefix="asr-server-", ignore_cleanup_errors=True))
                path = Path(folder) / "worker.sock"
                self._process = process = await self._spawn(path)
            except OSError as error:
                logger.opt(exception=error).error("worker cannot be started")
                self.ends[WorkerEnd.CRASHED] += 1
            else:
                await self._stay_with(process, path, began_s)

    async def _stay_with(self, process: Process, path: Path, began_s: float) -> None:
        exit_code = asyncio.create_task(process.wait())
        if self._life.state is WorkerState.STOPPING:
            _signal(process.terminate)  # nobody could while there was no process
        await self._await_ready(process, path, exit_code, began_s)
        code = await exit_code
        self._process = None
        await self._close_link()
        asked_to = self._life.state is WorkerState.STOPPING
        cause = WorkerEnd.STOPPED if asked_to else self._killed_for or WorkerEnd.CRASHED
        self.ends[cause] += 1
        log = logger.info if asked_to else logger.error
        log("worker ended", pid=process.pid, code=code, cause=cause.value)

    async def _await_ready(self, process: Process, path: Path, exit_code: asyncio.Task[int], began_s: float) -> None:
        ready = asyncio.create_task(_connectable(path))
        try:
            await asyncio.wait({ready, exit_code}, timeout=self._rules.start_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if ready.done() and not ready.cancelled() and not exit_code.done():
            if self._life.state is WorkerState.STARTING:
                self._link = WorkerConnection(self._number, path)
                self._life.ready(self._clock())
                logger.info("worker ready", pid=process.pid, took_s=round(self._clock() - began_s, 3))
                self._used_s = self._clock()
                self._move()
        elif not exit_code.done():
            self._kill(WorkerEnd.LATE, "worker not ready in time", limit_s=self._rules.start_s)

    async def _close_link(self) -> None:
        if (link := self._link) is not None:
            self._link = None
            link.gone.set()
            await link.http.aclose()


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):  # gone already, and not yet noticed
        send()


async def _connectable(path: Path) -> None:
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return
