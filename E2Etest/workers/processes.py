"""Finding the processes of a server with several front ends, as an operating system would."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from E2Etest.gateway.workers import command_of


def front_ends(server) -> list[int]:
    """Return the process ids of those that serve the port, oldest first."""
    return _of(server, lambda command: "--public" in command)


def with_jobs(server) -> list[int]:
    """Return the process id of the one that has the jobs."""
    return _of(server, lambda command: "--ledger" in command and "--public" not in command)


def engines(server) -> list[int]:
    """Return the process id of the engine."""
    return _of(server, lambda command: "asr_server.features.engine_process" in command)


def ledgers(server) -> list[Path]:
    """Return the directory of what the processes tell each other, none once the server has ended."""
    commands = [command_of(pid).decode().split("\0") for pid in front_ends(server)]
    return sorted({Path(command[command.index("--ledger") + 1]).parent for command in commands})


def _of(server, kind) -> list[int]:
    parent = server.process.pid
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    children = listed.read_text().split() if listed.exists() else []
    return [int(child) for child in children if kind(command_of(int(child)).decode().split("\0"))]


def replaced(server, old, find=front_ends, wait_s: float = 90.0) -> None:
    """Wait until none of the `old` processes is left, and as many others are."""
    give_up_s = time.monotonic() + wait_s
    while set(found := find(server)) & set(old) or len(found) < len(old):
        assert time.monotonic() < give_up_s, server.log()
        time.sleep(0.02)


def kill(pid: int) -> None:
    """SIGKILL, as the kernel does it where memory is short."""
    os.kill(pid, signal.SIGKILL)
