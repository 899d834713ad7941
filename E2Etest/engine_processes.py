"""Finding and killing the engine process of a server, as an operating system would."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def engine_of(server) -> int | None:
    """Return the id of the engine process, if there is one."""
    parent = server.process.pid
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"--socket" in command_of(int(child)):
            return int(child)
    return None


def command_of(pid: int) -> bytes:
    """The command line; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def kill_engine(server, wait_s: float = 60.0) -> int:
    """Send SIGKILL to the engine process, as soon as there is one. Returns its process id."""
    give_up_s = time.monotonic() + wait_s
    while (pid := engine_of(server)) is None:
        assert time.monotonic() < give_up_s, server.log()
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_until_gone(pid: int, wait_s: float = 30.0) -> None:
    """Wait until the process does not run any more."""
    give_up_s = time.monotonic() + wait_s
    while command_of(pid):
        assert time.monotonic() < give_up_s, f"{pid} runs"
        time.sleep(0.02)
