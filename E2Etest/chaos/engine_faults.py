"""The faults of the processes of a server, and what its callers may see of them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from websockets.exceptions import ConnectionClosed, InvalidStatus

from E2Etest.chaos.soak_faults import Faults
from E2Etest.chaos.soak_traffic import HANG_S, Callers, TryAgain
from E2Etest.drive.process import ServerProcess
from E2Etest.drive.procfs import engine_of, family, fork_server, until, wait_until_gone

EXCUSED_S = 2.0  # after a fault
# An engine process that is stopped is noticed after ENGINE_HANG_S (15 s); then another one starts and loads its model.
CALLER_HANG_S = 180.0
_RETRYABLE_CLOSES = {1012, 1013}
_PAUSE_S = 1.0  # before a caller tries again


class FaultTimes:
    """The times of faults of processes, and the refusals that they excuse. Used from many threads."""

    def __init__(self) -> None:
        self._at_s = [float("-inf")]
        self._lock = threading.Lock()
        self.refused: Counter[str] = Counter()
        self.latest_s = 0.0  # the longest time between a fault and a refusal
        self.unexcused: list[str] = []

    def now(self) -> None:
        self._at_s.append(time.monotonic())

    def refusal(self, code: str) -> None:
        """A caller is invited to try again."""
        since_s = time.monotonic() - max(self._at_s)
        with self._lock:
            self.refused[code] += 1
            self.latest_s = max(self.latest_s, since_s)
            if since_s > EXCUSED_S:
                self.unexcused.append(f"{code} {since_s:.1f} s after a fault")


class RetryingCallers(Callers):
    """They note every refusal that invites a retry, and try again until they are answered."""

    looked_at = ("/health", "/metrics", "/v1/models", "/")  # `/livez` is 503 while the engine stands still

    def __init__(self, server: ServerProcess, times: FaultTimes) -> None:
        super().__init__(server, CALLER_HANG_S)
        self._times = times

    def again(self, ask: Callable):
        """Ask until the answer is no refusal. Raises everything else."""
        while True:
            try:
                return ask()
            except (TryAgain, ConnectionClosed, InvalidStatus) as error:
                if (code := _invitation(error)) is None:
                    raise
                self._times.refusal(code)
                time.sleep(_PAUSE_S)


def _invitation(error: Exception) -> str | None:
    """The code with which an error invites to try again; None where it does not."""
    if isinstance(error, TryAgain):
        return error.code
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code in _RETRYABLE_CLOSES:
        return error.rcvd.reason
    if isinstance(error, InvalidStatus) and error.response.status_code == 503:
        return "handshake" if "retry-after" in error.response.headers else None
    return None


def _listening_files(pids: list[int]) -> list[Path]:
    """The names of the Unix sockets of the processes, as far as they exist."""
    held = set()
    for link in (link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()):
        with contextlib.suppress(FileNotFoundError):  # closed since the folder was read
            held.add(os.readlink(link))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    names = {Path(line[7]) for line in lines if len(line) > 7 and f"socket:[{line[6]}]" in held}
    return [name for name in names if name.is_absolute() and name.exists()]


class EngineFaults:
    """`happens` makes one fault. It returns when that is over, and raises `Unexpected` for a wrong end."""

    def __init__(self, server: ServerProcess, temporary: Path, times: FaultTimes, chance: random.Random) -> None:
        self._server, self._temporary, self._times, self._chance = server, temporary, times, chance
        self._others = Faults(server)

    def happens(self, name: str) -> None:
        """Make a fault of `SHARES_OF_FAULTS`."""
        what, _, process = name.partition(" ")
        if process == "files":
            self._delete_files()
        elif process == "decoder":  # of a long recording, at work: its caller gets a 400, as `codec` guarantees
            self._times.now()
            self._others.killed_decoder()
        elif (
            pid := until(lambda: engine_of(self._server), HANG_S)
            if process == "engine"
            else fork_server(self._server.process.pid)
        ) is not None:
            self._signal(pid, signal.SIGKILL if what == "killed" else signal.SIGSTOP)
            if what == "paused":
                time.sleep(self._chance.uniform(*((1.0, 5.0) if process == "engine" else (0.5, 2.0))))
                self._signal(pid, signal.SIGCONT)
            elif what == "stopped":  # for good: the server kills it
                wait_until_gone(pid, HANG_S)
                self._times.now()

    def _delete_files(self) -> None:
        """Delete all names of sockets on which a process listens, and the directory for temporary files."""
        self._times.now()
        for path in _listening_files(family(self._server.process.pid)):
            path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a file of it was just deleted
            shutil.rmtree(self._temporary)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if number is not signal.SIGCONT:
            self._times.now()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# How many of twenty are so.
SHARES_OF_FAULTS = {
    "deleted files": 4,
    "paused engine": 3,
    "stopped engine": 1,
    "killed engine": 3,
    "paused fork server": 2,
    "stopped fork server": 2,
    "killed fork server": 3,
    "killed decoder": 2,
}
