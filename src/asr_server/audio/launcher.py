"""The server's end of the zygote: start it when needed, hand it jobs, end it; what answers mean is for `decode`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from pathlib import Path

from asr_server.audio.wire import DecodeRequest

_RETRY_S = 0.005  # between attempts to hand over a job while the socket is full
_GRACE_S = 1.0  # the zygote leaves within milliseconds of our hanging up


class ForkServerLost(Exception):
    """The zygote died, before or while it worked for us; a new one may well live."""


class ForkServer:
    """At most one running zygote process. Not thread-safe; all methods belong to one event loop."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return self._process.pid if self._process is not None and self.alive() else None

    def alive(self) -> bool:
        """Whether the process runs; reaps it if it does not."""
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        return self._process is not None

    async def send(self, job: DecodeRequest, source_fd: int, out_fd: int) -> subprocess.Popen[bytes]:
        """Hand over one job; both descriptors stay the caller's to close. Starts the process if there is none.

        Returns the process that has it, for `has_died`. Raises `ForkServerLost` if it is dead or cannot be started.
        """
        process, control = self._present()
        while True:
            try:
                socket.send_fds(control, [job.to_bytes()], [source_fd, out_fd])
                return process
            except BlockingIOError:
                await asyncio.sleep(_RETRY_S)
            except OSError as lost:
                if process is self._process:
                    self._forget()
                process.kill()  # it is dying already: nothing else closes its end
                process.wait()
                raise ForkServerLost from lost

    async def close(self) -> None:
        """End the process and every decode in it; returns when it is gone."""
        process = self._process
        self._forget()
        if process is None:
            return
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    while process.poll() is None:  # noqa: ASYNC110 - a process ending sets no event
                        await asyncio.sleep(_RETRY_S)
        finally:
            process.kill()  # nothing if it has already been reaped
            process.wait()

    async def has_died(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether that process is gone; waits a moment, as its descriptors close a little before it can be reaped."""
        for _ in range(5):
            if process.poll() is not None:
                return True
            await asyncio.sleep(_RETRY_S)
        return False

    def _present(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is not None and self._control is not None and self.alive():
            return self._process, self._control
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "asr_server.audio.fork_server"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as unstarted:
            ours.close()
            raise ForkServerLost from unstarted
        finally:
            theirs.close()
        self._process, self._control = process, ours
        return process, ours

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._process, self._control = None, None


def _environment() -> dict[str, str]:
    """Not ours: keys and tokens stay here. The import path is ours, and numpy starts no threads before the forks."""
    package_root = str(Path(__file__).parents[2])
    return {
        "PYTHONPATH": ":".join([package_root, *(entry for entry in sys.path if entry)]),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
