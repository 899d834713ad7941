"""The processes of a server as the kernel sees them: memory, bytes read, which decode, and which is the engine."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], timeout_s: float = 60.0, state: Callable[[], object] = str) -> T:
    """Poll until `condition` holds, and return what it found; fail with what `state` returns."""
    give_up_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < give_up_s, state()
        time.sleep(0.01)
    return found


def family(pid: int) -> list[int]:
    """A process and all below it, parents first; those that end meanwhile are left out."""
    try:
        children = _children(pid)
    except OSError:
        return []
    return [pid, *(found for child in children for found in family(child))]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory in MiB; `VmHWM`: at its highest since the start or `forget_peak`. 0 for a process that ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return 0.0


def proportional_mb(pid: int) -> float:
    """Return resident memory in MiB, shared pages in parts: a process that just starts shares all with its parent."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    return 0.0


def forget_peak(pid: int) -> None:
    """Reset `VmHWM`, which counts anew from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def bytes_read(pid: int) -> int:
    """Return the bytes that the process has read from sockets, pipes and files since it began."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def fork_server(server_pid: int) -> int | None:
    """The decoders' parent, if there is one."""
    found = (pid for pid in family(server_pid) if b"asr_server.processes.fork_server" in _command_of(pid))
    return next(found, None)


def decoders(server_pid: int) -> list[int]:
    """The processes below the decoders' parent: a spare, and one for each file that is being decoded."""
    parent = fork_server(server_pid)
    return family(parent)[1:] if parent else []


def decoder_at_work(server) -> int:
    """Wait for a decoder that has used 0.2 s of CPU time."""
    return until(lambda: [pid for pid in decoders(server.process.pid) if cpu_s(pid) > 0.2], state=server.log)[0]


@contextmanager
def growth(server_pid: int) -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives a function that says by how many MiB the server grew at most, and any of its decoders, since here."""
    before = resident_mb(server_pid)
    parent = fork_server(server_pid)
    fresh = max((resident_mb(pid) for pid in decoders(server_pid)), default=resident_mb(parent) if parent else 0.0)
    forget_peak(server_pid)
    peaks, over = [fresh], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            peaks[0] = max(peaks[0], *(resident_mb(pid, "VmHWM") for pid in decoders(server_pid)), 0.0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: (resident_mb(server_pid, "VmHWM") - before, peaks[0] - fresh)
    finally:
        over.set()
        watcher.join()


def cpu_s(pid: int) -> float:
    """Seconds that a process has computed; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def engine_of(server) -> int | None:
    """Return the id of the engine process, if there is one."""
    return next((pid for pid in _children(server.process.pid) if b"--socket" in _command_of(pid)), None)


def kill_engine(server) -> int:
    """Send SIGKILL to the engine process, as soon as there is one. Returns its process id."""
    pid = until(lambda: engine_of(server), state=server.log)
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_until_gone(pid: int, wait_s: float = 30.0) -> None:
    """Wait until the process does not run any more."""
    until(lambda: not _command_of(pid), wait_s, lambda: f"{pid} runs")


def _command_of(pid: int) -> bytes:
    """Return the command line; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
