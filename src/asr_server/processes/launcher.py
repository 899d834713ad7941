"""The fork server as seen from the server: start it when it is needed, send it requests, end it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import time

from asr_server.processes.environment import child_environment, python_command

_RETRY_S = 0.005  # between attempts to send a request while the socket is full
# How long a request may wait for its child. A new process first imports its module, from a slow disk in many seconds.
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
        """Return the process id while it runs, else None."""
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
                socket.send_fds(control, [request], [source_fd, out_fd])
                return process
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    self.end(process)
                    raise ForkServerLost from None
                await asyncio.sleep(_RETRY_S)
            except OSError as lost:
                self.end(process)  # it is dying already: nothing else closes its end of the socket
                raise ForkServerLost from lost

    @property
    def answer_s(self) -> float:
        """Return how long to wait for the first sign of a child after `send`; beyond that the process hangs."""
        return _ANSWER_S if self._has_answered else _FIRST_ANSWER_S

    def answered(self, process: subprocess.Popen[bytes]) -> None:
        """A request that was sent to `process` has reached a child."""
        self._has_answered |= process is self._process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill that process and every request in it; a later `send` starts another."""
        if process is self._process:  # another task may have noticed before, and the new one be running
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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            process = subprocess.Popen(
                python_command("asr_server.processes.fork_server", self._module),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the server alone
            )
        except OSError as error:
            ours.close()
            raise ForkServerLost from error
        finally:
            theirs.close()
        self._process, self._control, self._has_answered = process, ours, False
        return process, ours

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._process, self._control = None, None
