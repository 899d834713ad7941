"""A child process with a socket: started when it is needed, again after a crash, and ended when it is idle or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Protocol

from loguru import logger

from asr_server.core.errors import ShuttingDown
from asr_server.core.idle import IdleTimer, trim_heap
from asr_server.core.settings import Settings, environment_of
from asr_server.processes.launcher import is_stopped, python_command, python_path
from asr_server.processes.unix_sockets import unnamed_socket

# Between two attempts to connect to a process that starts: at first, and at most.
_POLL_S, _MOST_POLL_S = 0.01, 0.5
PROBE_PAUSE_S = 2.0  # between two probes whether the process hangs
# For a process whose parent is gone to shut down: nobody reads its responses any more.
_END_S = 10.0
_EXIT_WAIT_S = 1.0  # from the end of a connection to the end of the process, if that caused it


class ProcessUnavailable(Exception):
    """The process does not stay up, and is not started for now. The message is for users."""


class Process(Protocol):
    """A started process."""

    pid: int

    async def wait(self) -> int:
        """Return the exit code once the process is gone; negative for a signal."""

    def terminate(self) -> None:
        """Ask it to shut down."""

    def kill(self) -> None:
        """End it at once."""


# Starts a process that will listen on that socket, which is bound.
Spawn = Callable[[socket.socket], Awaitable[Process]]


class ProcessEnd(StrEnum):
    """The causes of the end of a process."""

    STOPPED = "stopped"  # on purpose
    CRASHED = "crashed"
    HUNG = "hung"  # killed: it made no progress
    LATE = "late"  # killed: it was not ready in time


@dataclass(eq=False, slots=True)
class RunningProcess:
    """A process that accepts connections."""

    socket: Path
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set when it has ended


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a process, as one probe found it."""

    sign: str  # for the log
    limit_s: float = math.inf  # for how long a process may stay in it


WELL = Condition("well")  # also of a process that may not answer yet: other limits hold for its start


class HangDetector:
    """Judges one process.

    The time between two probes counts for at most `probe_s`: if more has passed, this process itself was suspended,
    which says nothing about the process.
    """

    def __init__(self, probe_s: float, now_s: float) -> None:
        self._probe_s, self._last_probe_s = probe_s, now_s
        self._limit_s, self._stalled_s = math.inf, 0.0  # of the condition that was found last, and how long it lasts

    def observe(self, found: Condition, now_s: float) -> bool:
        """Take the result of a probe. Returns True if the process has hung."""
        since_s = min(now_s - self._last_probe_s, self._probe_s)
        self._stalled_s = since_s + (self._stalled_s if found.limit_s == self._limit_s else 0.0)
        self._last_probe_s, self._limit_s = now_s, found.limit_s
        return self._stalled_s >= found.limit_s


class ProcessState(Enum):
    """The state of a process."""

    STOPPED = "stopped"
    STARTING = "starting"  # also during the wait before a restart
    RUNNING = "running"
    STOPPING = "stopping"
    FAILED = "failed"  # it crashes again and again; the next start is tried only after a while


# A process that ran for this long after it was ready was productive, also if it did no work.
_PRODUCTIVE_S = 30.0
# Before the second restart, and doubled with each further one. The first restart is immediate.
_FIRST_WAIT_S = 0.25
# Unproductive starts in a row, after which there is none for `GIVE_UP_S`.
_MOST_UNPRODUCTIVE = 5
GIVE_UP_S = 10.0


class RestartPolicy:
    """The restarts of a process that dies. Times are seconds on any monotonic clock."""

    def __init__(self) -> None:
        self.state = ProcessState.STOPPED
        self._unproductive = 0
        self._productive = False
        self._ready_s: float | None = None
        self._retry_at_s = 0.0

    def begin(self, now_s: float) -> bool:
        """Return True if the caller is to start a process now: the state is `STARTING` from then on."""
        may_start = self.state is ProcessState.FAILED and now_s >= self._retry_at_s
        if may_start or self.state is ProcessState.STOPPED:
            self.state = ProcessState.STARTING
            return True
        return False

    def on_ready(self, now_s: float) -> None:
        if self.state is ProcessState.STARTING:
            self.state, self._ready_s, self._productive = ProcessState.RUNNING, now_s, False

    def served(self) -> None:
        self._productive, self._unproductive = True, 0

    def stop(self) -> None:
        if self.state in (ProcessState.STARTING, ProcessState.RUNNING):
            self.state = ProcessState.STOPPING

    def on_exit(self, now_s: float) -> float | None:
        """Note that the process is gone, or could not be started.

        Returns the seconds until the next start, or None if there is none.
        """
        ready_s, self._ready_s = self._ready_s, None
        if self.state is ProcessState.STOPPING:
            self.state = ProcessState.STOPPED
            return None
        if self._productive or (ready_s is not None and now_s - ready_s >= _PRODUCTIVE_S):
            self._unproductive = 0
        self._productive = False
        self._unproductive += 1
        if self._unproductive >= _MOST_UNPRODUCTIVE:
            # After the pause, one more failure gives up again.
            self._unproductive = _MOST_UNPRODUCTIVE - 1
            self.state, self._retry_at_s = ProcessState.FAILED, now_s + GIVE_UP_S
            return None
        self.state = ProcessState.STARTING
        return 0.0 if self._unproductive == 1 else _FIRST_WAIT_S * float(2 ** (self._unproductive - 2))


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """Time limits."""

    name: str  # in the log and in messages
    start_s: float  # from the start until it is ready
    idle_s: float  # without use; 0 means no limit
    stop_s: float = 28.0  # to shut down
    path: Path | None = None  # where the process listens, if not at the socket that it is given


class Supervisor:
    """At most one process. Everything runs on one event loop."""

    def __init__(self, spawn: Spawn, config: SupervisorConfig) -> None:
        self._spawn, self._config = spawn, config
        self._policy = RestartPolicy()
        # Set, and replaced by a fresh one, at every change of state: a waiter gets exactly the next change.
        self._changed = asyncio.Event()
        self._process: Process | None = None
        self._ready: RunningProcess | None = None
        self._run: asyncio.Task[None] | None = None
        self._stop_requested = asyncio.Event()
        self.idle = IdleTimer(config.idle_s)
        self._kill_cause: ProcessEnd | None = None
        self.ends = dict.fromkeys(ProcessEnd, 0)
        self._refusing = False

    @property
    def state(self) -> ProcessState:
        return self._policy.state

    async def running(self) -> RunningProcess:
        """Return the process, started if there is none. Raises `ProcessUnavailable`, `ShuttingDown`."""
        while True:
            if self._refusing:
                raise ShuttingDown("The server is shutting down.")
            if self.state is ProcessState.RUNNING and self._ready is not None:
                return self._ready
            if self._policy.begin(time.monotonic()):
                self._stop_requested.clear()
                # Without the context of the request that is first: its id would be in every line about the process.
                self._run = asyncio.create_task(self._keep_running(), context=Context())
            elif self.state is ProcessState.FAILED:
                raise ProcessUnavailable(f"The {self._config.name} does not stay up; the log says why.")
            await self._changed.wait()

    async def lost(self, running: RunningProcess) -> None:
        """Wait, after a connection to this process broke, until the process is gone too or evidently still runs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_WAIT_S):
                await running.gone.wait()

    def served(self) -> None:
        self._policy.served()

    async def close_idle(self) -> None:
        if self.state is ProcessState.RUNNING:
            logger.info(f"{self._config.name} idle", idle_s=round(self.idle.idle_s, 1))
            await self.stop()
            trim_heap()  # of what its rows took here

    async def end_when_hung(self, probe: Callable[[], Condition], hang_s: float, probe_s: float) -> None:
        """Kill the process whenever it hangs, which then counts as a crash. Runs for ever.

        `probe` is for a process that runs. `hang_s`: the limit for one that a signal has stopped. `probe_s`: the
        longest time that a probe and the pause before it can take.
        """
        pause_s = min(PROBE_PAUSE_S, hang_s / 4)
        watched: Process | None = None
        while True:
            await asyncio.sleep(pause_s)
            if (process := self._process) is None:
                continue
            if process is not watched:
                watched, detector = process, HangDetector(probe_s, time.monotonic())
            if is_stopped(process.pid):
                found = Condition("stopped", hang_s)
            else:  # one that starts, or ends, has time limits of its own
                found = probe() if self.state is ProcessState.RUNNING else WELL
            if detector.observe(found, time.monotonic()) and process is self._process:
                self.kill("hangs", ProcessEnd.HUNG, sign=found.sign, after_s=found.limit_s)
                watched = None  # a new detector: if the process survives even that, it is not killed at every probe

    def kill(self, why: str, cause: ProcessEnd = ProcessEnd.CRASHED, **details: object) -> None:
        """End the process at once. `why` follows its name in the log."""
        if (process := self._process) is not None:
            logger.error(f"{self._config.name} {why} and is killed", pid=process.pid, **details)
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

    async def close(self) -> None:
        """Start no more processes, and shut the last one down, which finishes what it has."""
        self._refusing = True
        self._notify()
        await self.stop()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _keep_running(self) -> None:
        """Run one process after another, until one is stopped on purpose or the policy gives up."""
        wait_s: float | None = 0.0
        while wait_s is not None and self._policy.state is ProcessState.STARTING:
            await self._run_once()
            wait_s = self._policy.on_exit(time.monotonic())
            if self.state is ProcessState.FAILED:
                logger.error(f"{self._config.name} given up: it does not stay up")
            self._notify()
            if wait_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._stop_requested.wait()
        if self._policy.state is ProcessState.STOPPING:  # `stop` was called while no process ran
            self._policy.on_exit(time.monotonic())
            self._notify()

    async def _run_once(self) -> None:
        """Start a process and wait until it is gone."""
        began_s = time.monotonic()
        self._kill_cause = None
        with ExitStack() as stack:
            try:
                place = stack.enter_context(unnamed_socket())
                with place.listener:  # afterwards the process has the only copy, whose connections break when it ends
                    self._process = process = await self._spawn(place.listener)
            except OSError as error:
                logger.error(f"{self._config.name} cannot be started", reason=str(error))
                self.ends[ProcessEnd.CRASHED] += 1
            else:
                await self._supervise(process, self._config.path or place.path, began_s)

    async def _supervise(self, process: Process, path: Path, began_s: float) -> None:
        exit_code = asyncio.create_task(process.wait())
        if self._policy.state is ProcessState.STOPPING:
            _signal(process.terminate)  # `stop` could not while there was no process
        await self._await_ready(process, path, exit_code, began_s)
        code = await exit_code
        self._process = None
        if (running := self._ready) is not None:
            self._ready = None
            running.gone.set()
        asked_to = self._policy.state is ProcessState.STOPPING
        cause = ProcessEnd.STOPPED if asked_to else self._kill_cause or ProcessEnd.CRASHED
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
            if self._policy.state is ProcessState.STARTING:
                self._ready = RunningProcess(path)
                self._policy.on_ready(time.monotonic())
                logger.info(f"{self._config.name} ready", pid=process.pid, took_s=round(time.monotonic() - began_s, 3))
                self.idle.touch()
                self._notify()
        elif not exit_code.done():
            self.kill("is not ready in time", ProcessEnd.LATE, limit_s=self._config.start_s)


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        send()


async def _connectable(path: Path) -> None:
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            return
        await asyncio.sleep(min(max(_POLL_S, (time.monotonic() - began_s) / 20), _MOST_POLL_S))


def starter(module: tuple[str, ...], settings: Settings, *, output: int | None = None) -> Spawn:
    """Return a function that starts a module with these arguments and `--socket`, the descriptor of its socket.

    It has the same settings. `output`: the file descriptor that it writes to; None for this process's own.
    """
    environment = {**environment_of(settings), "PYTHONPATH": python_path()}

    async def spawn(listener: socket.socket) -> Process:
        fd = listener.fileno()
        # In a process session of its own: Ctrl-C reaches only the parent, which shuts it down.
        return await asyncio.create_subprocess_exec(
            *python_command(*module, "--socket", str(fd)),
            stdin=PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=(fd,),
            start_new_session=True,
        )

    return spawn


def end_with_parent(shut_down_s: float = _END_S) -> None:
    """Watch the standard input from a thread, and end this process at its end, after at most `shut_down_s` seconds in
    which it may do so in order."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        if shut_down_s:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(shut_down_s)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
