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
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from loguru import logger

from asr_server.core.idle import IdleTimer, trim_heap
from asr_server.core.settings import Settings, environment_of
from asr_server.processes.launcher import is_stopped, python_command, python_path
from asr_server.processes.unix_sockets import unnamed_socket

# The pause between attempts to connect to a process: at first, and at most.
_POLL_S, _MOST_POLL_S = 0.01, 0.5
_PROBE_PAUSE_S = 2.0  # between two probes for a hang
# The time for a process to shut down when its parent is gone: nobody reads its responses any more.
_END_S = 10.0
_DRAIN_S = 1.0  # from the end of a process to the end of its connection, which still has the last data that it sent
# A process that ran for this long after it was ready was productive, even if it did no work.
_PRODUCTIVE_S = 30.0
# The pause before the second restart; it doubles with each further restart. The first restart is immediate.
_FIRST_WAIT_S = 0.25
# After this many unproductive starts in a row, none is made for `GIVE_UP_S`.
_MOST_UNPRODUCTIVE = 5
GIVE_UP_S = 10.0


class Process(Protocol):
    """A started process."""

    pid: int

    async def wait(self) -> int:
        """Return the exit code once the process is gone; negative for a signal."""

    def terminate(self) -> None:
        """Ask it to shut down."""

    def kill(self) -> None:
        """End it at once."""


# Starts a process that will listen on the given socket, which is bound.
Spawn = Callable[[socket.socket], Awaitable[Process]]


class ProcessEnd(StrEnum):
    """The causes of the end of a process."""

    STOPPED = "stopped"  # on purpose
    CRASHED = "crashed"
    HUNG = "hung"  # killed: it made no progress
    LATE = "late"  # killed: it was not ready in time


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a process, as one probe found it."""

    sign: str  # for the log
    limit_s: float = math.inf  # for how long a process may stay in it


WELL = Condition("well")  # also for a process that need not answer yet: other limits apply to its start


class HangDetector:
    """Decides whether one process hangs.

    The time between two probes counts for at most `probe_s`: if more has passed, the supervisor itself was suspended,
    which says nothing about the process.
    """

    def __init__(self, probe_s: float, now_s: float) -> None:
        self._probe_s, self._last_probe_s = probe_s, now_s
        self._limit_s, self._stalled_s = math.inf, 0.0  # of the last condition, and how long it has lasted

    def observe(self, found: Condition, now_s: float) -> bool:
        """Take the result of a probe. Returns True if the process has hung."""
        since_s = min(now_s - self._last_probe_s, self._probe_s)
        self._stalled_s = since_s + (self._stalled_s if found.limit_s == self._limit_s else 0.0)
        self._last_probe_s, self._limit_s = now_s, found.limit_s
        return self._stalled_s >= found.limit_s


@dataclass(frozen=True, slots=True)
class Supervised:
    """The process of a supervisor: what it is for, and its time limits."""

    name: str  # in the log and in messages
    spawn: Spawn
    # Connects to the process, reports that it is `ready`, and works with it until the connection has ended. Raises
    # OSError while the process does not listen.
    use: Callable[[Path], Awaitable[None]]
    probe: Callable[[], Condition]  # of a process that is ready
    give_up: Callable[[str], None]  # called with the reason, for users, before a long pause without a process
    start_s: float  # from the start until it is ready
    stop_s: float  # to shut down
    idle_s: float  # without use; 0 means no limit
    hang_s: float  # for which a signal such as SIGSTOP may stop it
    path: Path | None = None  # where the process listens, if not at the socket that it is given


class Supervisor:
    """Runs at most one process at a time. Everything runs on one event loop."""

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised
        self._process: Process | None = None
        self._exit_code: asyncio.Task[int] | None = None  # of the process
        self._began_s = 0.0
        self._ready_s: float | None = None
        self._has_served = False
        self._cause = ProcessEnd.STOPPED  # of the end of the last process, or of this one if it ended now
        self.idle = IdleTimer(supervised.idle_s)
        self.ends = dict.fromkeys(ProcessEnd, 0)

    @property
    def is_stopping(self) -> bool:
        return self._cause is ProcessEnd.STOPPED

    async def run(self, wanted: asyncio.Event) -> None:
        """Run one process after another, for ever: the first when it is wanted, and another when one has crashed.

        Cancel it to stop. It then ends when the process is gone, which first finishes its work.
        """
        crashes = 0  # in a row, of processes that were not productive
        while True:
            if not crashes:
                await wanted.wait()
            await self._run_once()
            ran_s = 0.0 if self._ready_s is None else time.monotonic() - self._ready_s
            if self.is_stopping:
                crashes = 0
                continue
            crashes = 1 if self._has_served or ran_s >= _PRODUCTIVE_S else crashes + 1
            if crashes == _MOST_UNPRODUCTIVE:
                crashes -= 1  # after the pause, one more failure gives up again
                logger.error(f"{self._supervised.name} given up: it does not stay up")
                self._supervised.give_up(f"The {self._supervised.name} does not stay up; the log says why.")
                await asyncio.sleep(GIVE_UP_S)
            elif crashes > 1:
                await asyncio.sleep(_FIRST_WAIT_S * 2 ** (crashes - 2))

    def ready(self) -> None:
        if self._ready_s is None and self._process is not None:
            self._ready_s = time.monotonic()
            took_s = round(self._ready_s - self._began_s, 3)
            logger.info(f"{self._supervised.name} ready", pid=self._process.pid, took_s=took_s)
            self.idle.touch()

    def served(self) -> None:
        self._has_served = True

    async def close_idle(self) -> None:
        if self._process is not None and self._ready_s is not None and not self.is_stopping:
            logger.info(f"{self._supervised.name} idle", idle_s=round(self.idle.idle_s, 1))
            await self._stop()
            trim_heap()  # frees what its rows took in this process

    def kill(self, why: str, cause: ProcessEnd = ProcessEnd.CRASHED, **details: object) -> None:
        """End the process at once. `why` follows its name in the log."""
        if (process := self._process) is not None:
            logger.error(f"{self._supervised.name} {why} and is killed", pid=process.pid, **details)
            if not self.is_stopping:
                self._cause = cause
            _signal(process.kill)

    async def _stop(self) -> None:
        """Shut the process down; if it does not end in time, kill it."""
        assert self._exit_code is not None
        assert self._process is not None
        self._cause = ProcessEnd.STOPPED
        _signal(self._process.terminate)
        _, late = await asyncio.wait({self._exit_code}, timeout=self._supervised.stop_s)
        if late:
            self.kill("does not end in time")
            await asyncio.wait(late)

    async def _run_once(self) -> None:
        """Start a process and wait until it is gone."""
        self._cause, self._began_s, self._ready_s = ProcessEnd.CRASHED, time.monotonic(), None
        self._has_served = False
        try:
            with unnamed_socket() as place:
                with place.listener:  # then only the child has it, so connections break when it ends
                    process = await self._supervised.spawn(place.listener)
                await self._supervise(process, self._supervised.path or place.path)
        except OSError as error:
            logger.error(f"{self._supervised.name} cannot be started", reason=str(error))
        finally:
            self.ends[self._cause] += 1

    async def _supervise(self, process: Process, path: Path) -> None:
        self._process, self._exit_code = process, asyncio.create_task(process.wait())
        use = asyncio.create_task(self._use(path, self._exit_code))
        watch = asyncio.create_task(self._end_when_hung(process))
        late = asyncio.get_running_loop().call_later(self._supervised.start_s, self._end_when_late)
        try:
            await asyncio.wait({self._exit_code})
        except asyncio.CancelledError:
            await self._stop()
            raise
        finally:
            late.cancel()
            watch.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await use
            self._process = None
            log = logger.info if self.is_stopping else logger.error
            code = self._exit_code.result()
            log(f"{self._supervised.name} ended", pid=process.pid, code=code, cause=self._cause.value)

    async def _use(self, path: Path, exit_code: asyncio.Task[int]) -> None:
        while not exit_code.done():
            with contextlib.suppress(OSError):
                await self._supervised.use(path)
            pause_s = min(max(_POLL_S, (time.monotonic() - self._began_s) / 20), _MOST_POLL_S)
            await asyncio.wait({exit_code}, timeout=pause_s)

    def _end_when_late(self) -> None:
        if self._ready_s is None:
            self.kill("is not ready in time", ProcessEnd.LATE, limit_s=self._supervised.start_s)

    async def _end_when_hung(self, process: Process) -> None:
        """Kill the process if it hangs. That counts as a crash."""
        hang_s = self._supervised.hang_s
        pause_s = min(_PROBE_PAUSE_S, hang_s / 4)
        detector = HangDetector(2 * pause_s, time.monotonic())
        while True:
            await asyncio.sleep(pause_s)
            if is_stopped(process.pid):
                found = Condition("stopped", hang_s)
            else:  # a process that starts or ends has its own time limits
                found = WELL if self._ready_s is None or self.is_stopping else self._supervised.probe()
            if detector.observe(found, time.monotonic()):
                self.kill("hangs", ProcessEnd.HUNG, sign=found.sign, after_s=found.limit_s)
                # A process that survives even that is not killed again at every probe.
                detector = HangDetector(2 * pause_s, time.monotonic())


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        send()


def starter(module: tuple[str, ...], settings: Settings, *, output: int | None = None) -> Spawn:
    """Return a function that starts a module with these arguments and `--socket`, the descriptor of its socket.

    The module gets `settings`. `output`: the file descriptor that it writes to; None for this process's own output.
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
    """End this process when its standard input closes, which means that the parent is gone. A thread watches for that.
    First, allow at most `shut_down_s` seconds for a clean shutdown."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        if shut_down_s:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(shut_down_s)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
