"""How a worker process is started, and how it knows that the gateway is gone: by the end of its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE
from pathlib import Path

from asr_server.core.settings import Settings, environment_of
from asr_server.gateway.worker import Process, Spawn

# For a worker whose gateway is gone: nobody reads its answers any more.
_END_S = 10.0


def spawner(settings: Settings, *, output: int | None = None) -> Spawn:
    """Starts this same package as a worker with the same settings.

    `output`: the file descriptor for all that it writes; None for those of this process.
    """
    package_root = str(Path(__file__).parents[2])
    # A caller's share is counted before the worker, which sees no addresses, and what is sent again twice.
    environment = environment_of(settings, key_max_requests=0, key_rate=0)
    environment["PYTHONPATH"] = ":".join([package_root, *(entry for entry in sys.path if entry)])

    async def spawn(path: Path) -> Process:
        command = (sys.executable, "-P", "-m", "asr_server", "worker", "--socket", str(path))
        # In a session of its own: Ctrl-C is for the gateway, which ends the worker in order.
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
        )

    return spawn


def end_with_gateway(path: Path) -> None:
    """Watch the standard input from a thread of its own: at its end this process is ended, and its socket removed."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        with contextlib.suppress(OSError):  # the folder only if nothing else is in it
            path.unlink(missing_ok=True)
            path.parent.rmdir()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_END_S)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
