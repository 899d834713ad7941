"""Starts a worker process, and ends it with its gateway, whose end it sees as the end of its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asr_server.core.settings import Settings, environment_of
from asr_server.processes.launcher import python_command, python_path

if TYPE_CHECKING:
    from asr_server.features.gateway.worker import Process, Spawn

# For a worker whose gateway is gone to shut down: nobody reads its responses any more.
_END_S = 10.0
_NO_LIMIT = 1_000_000


def spawner(settings: Settings, *, output: int | None = None) -> Spawn:
    """Return a function that starts this package as a worker with the same settings.

    `output`: the file descriptor that it writes to; None for the standard output and error of this process.
    """
    # The gateway applies the quotas: the worker sees no addresses, and would count a request that is sent again twice.
    # It also waits for load balancers before it ends the worker, and asks its clients to move.
    limits = {"key_max_requests": 0, "key_rate": 0, "max_live_sessions": _NO_LIMIT, "drain_delay_s": 0, "handover_s": 0}
    environment = child_environment(settings, **limits)
    return starter(("asr_server", "worker"), environment, output=output)


def starter(module: tuple[str, ...], environment: Mapping[str, str], *, output: int | None = None) -> Spawn:
    """Return a function that starts a module with these arguments, and `--socket` with the descriptor of its socket."""

    async def spawn(listener: socket.socket) -> Process:
        fd = listener.fileno()
        # In a process session of its own: Ctrl-C reaches only the parent, which shuts the worker down.
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


def child_environment(settings: Settings, **changes: Any) -> dict[str, str]:
    """Return the environment of a process that runs this package with the same settings, except for `changes`."""
    return {**environment_of(settings, **changes), "PYTHONPATH": python_path()}


def end_with_gateway(shut_down_s: float = _END_S) -> None:
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
