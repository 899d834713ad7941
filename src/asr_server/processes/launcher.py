"""Starts Python processes with a minimal environment, and runs the fork server: starts it, sends requests, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

_MOST_FILES = 65_536


def is_stopped(pid: int) -> bool:
    """True if a signal such as SIGSTOP has stopped the process (state T in proc(5)). False if that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:  # it has just ended, or there is no /proc
        return False


def raise_file_limit() -> None:
    """Let the process open as many files and connections as the system allows it, but no more than `_MOST_FILES`.

    The limit at the start is meant for programs that call `select`: with it, 1,100 idle connections would shut out
    everybody else.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module, *arguments)


def python_path() -> str:
    """Return the PYTHONPATH with which another process imports the same modules as this one."""
    package_root = str(Path(__file__).parents[2])
    return os.pathsep.join([package_root, *(entry for entry in sys.path if entry)])


def child_environment() -> dict[str, str]:
    """Return the environment of a Python process that confines itself: keys and tokens stay in the server, and numpy
    starts no threads, which forks would lose."""
    return {
        "PYTHONPATH": python_path(),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }


_RETRY_S = 0.005  # between attempts to send a request while the socket is full
# How long a request may wait for its child. A new process first imports its module: many seconds from a slow disk.
_FIRST_ANSWER_S, _ANSWER_S = 20.0, 10.0
_GRACE_S = 1.0  # the fork server exits within milliseconds after the server closes its socket


class ForkServerLost(Exception):
    """The fork server died or does not answer, before or during a request. A new one may work."""


class ForkServer:
    """Starts at most one fork server, whose children run `module` (see `fork_server`). All methods must be
    called on one event loop; no lock protects them."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._has_answered = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.alive() else None

    def alive(self) -> bool:
        """True if the process runs; reaps it if it does not."""
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        return self._process is not None

    async def send(self, request: bytes, source_fd: int, out_fd: int) -> subprocess.Popen[bytes]:
        """Send one request; the caller still closes both descriptors. Starts the process if there is none.

        Returns the process that got the request, for `has_died`. Raises `ForkServerLost` if it died or cannot be
        started.
        """
        process, control = self._started()
        give_up_s = time.monotonic() + self.answer_s
        while True:
            try:
                socket.send_fds(control, [request], [source_fd, out_fd])  # whole or not at all: it is one packet
                return process
            except BlockingIOError:  # requests that the process has not read fill the socket
                if time.monotonic() > give_up_s:
                    self.end(process)
                    raise ForkServerLost from None
                await asyncio.sleep(_RETRY_S)
            except OSError as lost:
                self.end(process)  # the process is dying already: nothing else closes its end of the socket
                raise ForkServerLost from lost

    @property
    def answer_s(self) -> float:
        """Return how long to wait for the first message of a child after `send`. If there is none by then, it hangs."""
        return _ANSWER_S if self._has_answered else _FIRST_ANSWER_S

    def answered(self, process: subprocess.Popen[bytes]) -> None:
        """Note that a request that was sent to `process` has reached a child."""
        self._has_answered |= process is self._process  # unless another has replaced it meanwhile

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill that process and every request in it; a later `send` starts another."""
        if process is self._process:  # else another task has noticed before; a new one may be running
            self._forget()
        process.kill()
        process.wait()

    async def close(self) -> None:
        """End the process and every request in it; returns when it is gone."""
        process = self._process
        self._forget()  # closing the control socket is the request to exit; a later `send` starts a new process
        if process is None:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    while process.poll() is None:  # noqa: ASYNC110 - a process ending sets no event
                        await asyncio.sleep(_RETRY_S)
        finally:
            process.kill()  # does nothing if it has been reaped
            process.wait()

    async def has_died(self, process: subprocess.Popen[bytes]) -> bool:
        """True if that process is gone. Waits up to 25 ms: its descriptors close a little before it can be reaped."""
        for _ in range(5):
            if process.poll() is not None:
                return True
            await asyncio.sleep(_RETRY_S)
        return False

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is not None and self._control is not None and self.alive():
            return self._process, self._control
        # Packets keep a request and its descriptors together. Our end never blocks: it belongs to the event loop.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            process = subprocess.Popen(
                python_command("asr_server.processes.fork_server", self._module),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the server
            )
        except OSError as error:
            ours.close()
            raise ForkServerLost from error
        finally:
            theirs.close()  # our end shows the end of the process only if no copy is left here
        self._process, self._control, self._has_answered = process, ours, False
        return process, ours

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._process, self._control = None, None
