"""A worker process: started when it is needed, started again after a crash, ended when it is idle or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx
from loguru import logger

from asr_server.core.errors import ShuttingDown, WorkerUnavailable
from asr_server.core.idle import IdleTimer
from asr_server.features.gateway.hang_detector import HangConfig, HangDetector, ProbeResult
from asr_server.features.gateway.restart_policy import Decision, RestartConfig, RestartPolicy, WorkerState
from asr_server.ops.metric_spec import WorkerEnd
from asr_server.processes.launcher import is_stopped
from asr_server.processes.unix_sockets import unnamed_socket

_POLL_S = 0.01  # between two attempts to connect to a worker that starts
PROBE_PAUSE_S = 2.0  # between two probes whether the worker hangs
_EXIT_WAIT_S = 1.0  # from the end of a connection to the end of the process, if that caused it
# The worker keeps idle connections for longer, so it never closes one that is being taken up.
_KEEP_ALIVE_S = 30.0
# Unused, as the socket has no TLS. httpx would make one for each connection, which takes 4 ms of the event loop.
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Process(Protocol):
    """A started worker."""

    pid: int

    async def wait(self) -> int:
        """Return the exit code once the process is gone; negative for a signal."""

    def terminate(self) -> None:
        """Ask it to shut down."""

    def kill(self) -> None:
        """End it at once."""


# Starts a worker that will listen on that socket, which is bound.
Spawn = Callable[[socket.socket], Awaitable[Process]]


@dataclass(eq=False, slots=True)
class WorkerConnection:
    """One running worker: where it is reached, and the HTTP connections to it."""

    number: int
    socket: Path
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set when it has ended
    http: httpx.AsyncHTTPTransport = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=_KEEP_ALIVE_S)
        self.http = httpx.AsyncHTTPTransport(uds=str(self.socket), limits=limits, verify=_TLS)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Time limits, and the limits of restarts."""

    start_s: float  # from the start until it is ready
    idle_s: float  # without use; 0 means no limit
    stop_s: float = 28.0  # to shut down
    restart: RestartConfig = field(default_factory=RestartConfig)
    name: str = "worker"  # in the log and in messages


class Worker:
    """At most one worker process. Everything runs on one event loop.

    `busy` asks a running worker whether it has work besides the open requests, such as a job.
    """

    def __init__(
        self,
        spawn: Spawn,
        config: WorkerConfig,
        busy: Callable[[WorkerConnection], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawn, self._config, self._busy, self._clock = spawn, config, busy, clock
        self._policy = RestartPolicy(config.restart)
        # Set, and replaced by a fresh one, at every change of state: whoever waits for one gets exactly the next.
        self._changed = asyncio.Event()
        self._process: Process | None = None
        self._connection: WorkerConnection | None = None
        self._run: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self._number = 0
        self.idle = IdleTimer(config.idle_s, clock)
        self._kill_cause: WorkerEnd | None = None
        self.starts = 0
        self.ends = dict.fromkeys(WorkerEnd, 0)
        self.draining = False  # it is about to end: load balancers should send nobody
        self.refusing = False  # new requests get an error

    @property
    def state(self) -> WorkerState:
        """The state of the process."""
        return self._policy.state

    @property
    def connection(self) -> WorkerConnection | None:
        """The running worker, if there is one."""
        return self._connection if self._policy.state is WorkerState.RUNNING else None

    async def running(self) -> WorkerConnection:
        """The running worker, started if there is none. Raises `WorkerUnavailable`, `ShuttingDown`."""
        while True:
            if self.refusing:
                raise ShuttingDown("The server is shutting down.")
            match self._policy.decide(self._clock()):
                case Decision.GO if self._connection is not None:
                    return self._connection
                case Decision.GIVE_UP:
                    raise WorkerUnavailable(f"The {self._config.name} process does not stay up; the log says why.")
                case Decision.START:
                    self._stop_requested.clear()
                    # Without the context of the request that is first: its id would be in every line about the process.
                    self._run = asyncio.create_task(self._keep_running(), context=Context())
            await self._changed.wait()

    async def lost(self, connection: WorkerConnection) -> None:
        """Wait, after a connection to this worker broke, until its process is gone too or evidently goes on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WAIT_S):
                await connection.gone.wait()

    def served(self) -> None:
        """Note that the worker answered a request."""
        self._policy.served()

    @contextmanager
    def use(self) -> Iterator[None]:
        """The worker is not idle before the block ends."""
        self.idle.hold()
        try:
            yield
        finally:
            self.idle.release()

    async def close_idle(self) -> None:
        """End the process unless it has work of its own, or is used meanwhile."""
        connection = self.connection
        if connection is None or await self._busy(connection):
            return
        if connection is self.connection and self.idle.expired:
            logger.info(f"{self._config.name} idle", idle_s=round(self.idle.idle_s, 1))
            await self.stop()

    async def end_when_hung(
        self, probe: Callable[[WorkerConnection], Awaitable[ProbeResult]], config: HangConfig
    ) -> None:
        """Kill the process whenever it hangs, which then counts as a crash. Runs for ever."""
        pause_s = min(PROBE_PAUSE_S, config.hang_s / 4)
        watched: Process | None = None
        while True:
            await asyncio.sleep(pause_s)
            if (process := self._process) is None:
                continue
            if process is not watched:
                watched, detector = process, HangDetector(config, self._clock())
            if is_stopped(process.pid):
                result = ProbeResult.STOPPED
            elif (connection := self.connection) is not None:
                result = await probe(connection)
            else:  # it starts, or ends: both have time limits of their own
                result = ProbeResult.LOADING
            if detector.observe(result, self._clock()) and process is self._process:
                details = {"sign": result.name.lower(), "after_s": config.hang_s}
                self._kill(WorkerEnd.HUNG, "hangs and is killed", **details)
                watched = None  # a new detector: if the process survives even that, it is not killed at every probe

    def kill(self, why: str) -> None:
        """End the process at once, which then counts as a crash. `why` follows its name in the log."""
        self._kill(WorkerEnd.CRASHED, f"{why} and is killed")

    def _kill(self, cause: WorkerEnd, why: str, **details: object) -> None:
        if (process := self._process) is not None:
            logger.error(f"{self._config.name} {why}", pid=process.pid, **details)
            self._kill_cause = cause
            _signal(process.kill)

    async def stop(self) -> None:
        """Shut the process down; if it does not end in time, kill it. Returns when it is gone."""
        self._policy.stop()
        self._stop_requested.set()
        if (process := self._process) is not None:
            _signal(process.terminate)
        if self._run is None:
            return
        _, late = await asyncio.wait({self._run}, timeout=self._config.stop_s)
        if late and process is not None:
            logger.error(f"{self._config.name} does not end in time and is killed", pid=process.pid)
            _signal(process.kill)
            await asyncio.wait({self._run})

    async def refuse(self, delay_s: float = 0.0) -> None:
        """Report `draining`, and after `delay_s` seconds accept no more work."""
        self.draining = True
        await asyncio.sleep(delay_s)
        self.refusing = True
        self._notify()

    async def drain(self) -> None:
        """Accept no more work, and shut the worker down, which finishes what it has."""
        await self.refuse()
        await self.stop()

    def _notify(self) -> None:
        self._changed.set()
        # Set, and replaced by a fresh one, at every change of state: whoever waits for one gets exactly the next.
        self._changed = asyncio.Event()

    async def _keep_running(self) -> None:
        """Run one process after another, until one is stopped on purpose or the policy gives up."""
        wait_s: float | None = 0.0
        while wait_s is not None and self._policy.state is WorkerState.STARTING:
            await self._run_once()
            wait_s = self._policy.on_exit(self._clock())
            if self._policy.given_up:
                logger.error(f"{self._config.name} given up: it does not stay up")
            self._notify()
            if wait_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stop_requested.wait()
        if self._policy.state is WorkerState.STOPPING:  # `stop` was called while no process ran
            self._policy.on_exit(self._clock())
            self._notify()

    async def _run_once(self) -> None:
        """Start a process and wait until it is gone."""
        self._number += 1
        began_s = self._clock()
        self._kill_cause = None
        self.starts += 1
        with ExitStack() as stack:
            try:
                place = stack.enter_context(unnamed_socket())
                with place.listener:  # afterwards the worker has the only copy, whose connections break when it ends
                    self._process = process = await self._spawn(place.listener)
            except OSError as error:
                logger.error(f"{self._config.name} cannot be started", reason=str(error))
                self.ends[WorkerEnd.CRASHED] += 1
            else:
                await self._supervise(process, place.path, began_s)

    async def _supervise(self, process: Process, path: Path, began_s: float) -> None:
        exit_code = asyncio.create_task(process.wait())
        if self._policy.state is WorkerState.STOPPING:
            _signal(process.terminate)  # `stop` could not while there was no process
        await self._await_ready(process, path, exit_code, began_s)
        code = await exit_code
        self._process = None
        await self._close_connection()
        asked_to = self._policy.state is WorkerState.STOPPING
        cause = WorkerEnd.STOPPED if asked_to else self._kill_cause or WorkerEnd.CRASHED
        self.ends[cause] += 1
        log = logger.info if asked_to else logger.error
        log(f"{self._config.name} ended", pid=process.pid, code=code, cause=cause.value)

    async def _await_ready(self, process: Process, path: Path, exit_code: asyncio.Task[int], began_s: float) -> None:
        ready = asyncio.create_task(_connectable(path))
        try:
            await asyncio.wait({ready, exit_code}, timeout=self._config.start_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if ready.done() and not ready.cancelled() and not exit_code.done():
            if self._policy.state is WorkerState.STARTING:
                self._connection = WorkerConnection(self._number, path)
                self._policy.on_ready(self._clock())
                logger.info(f"{self._config.name} ready", pid=process.pid, took_s=round(self._clock() - began_s, 3))
                self.idle.touch()
                self._notify()
        elif not exit_code.done():
            self._kill(WorkerEnd.LATE, "not ready in time", limit_s=self._config.start_s)

    async def _close_connection(self) -> None:
        if (connection := self._connection) is not None:
            self._connection = None
            connection.gone.set()
            await connection.http.aclose()


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
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
