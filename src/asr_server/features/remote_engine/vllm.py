"""`vllm serve` as a child process: started, waited for, and ended with this process."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from asr_server.core.environment import process_environment
from asr_server.core.errors import ModelUnavailable

# To download a model and to compile for its shapes; to end by itself when it is told to.
_START_S, _END_S = 3600.0, 20.0
_PORTS_TRIED = 100
_POLL_S = 0.5
_KEPT_LINES, _SHOWN_CHARS = 20, 300
# Runs the command so that it gets SIGTERM when the thread that started it ends, whatever ends that (prctl(2)). The
# check is for an end before the call.
_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
os.getppid() == int(sys.argv[1]) or sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class VllmProcess:
    """Runs from its making until `end`. `command`: without the address. `url`, `key`: where and how it is reached, on
    this machine alone.

    Raises `ModelUnavailable` if it cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.key, port = secrets.token_urlsafe(24), _free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        self._give_up_s = time.monotonic() + _START_S
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _WITH_PARENT,
                    str(os.getpid()),
                    *command,
                    "--host",
                    "127.0.0.1",
                    f"--port={port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=process_environment(VLLM_API_KEY=self.key, VLLM_NO_USAGE_STATS="1"),
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends it
            )
        except OSError as error:
            raise ModelUnavailable(f"USE_VLLM: vllm cannot be started ({error.strerror}).") from None
        self._reader = threading.Thread(target=self._read, name="vllm-log", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """True if the process runs."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait a little for its start. Raises `ModelUnavailable` once it has ended, or takes too long."""
        try:
            code = self._process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._give_up_s:
                return
            self.end()
            raise ModelUnavailable(f"USE_VLLM: vllm was not ready within {_START_S / 60:.0f} minutes.") from None
        self._reader.join(_END_S)
        last = next((line for line in reversed(self._lines) if "Error" in line), "its output is in the log (DEBUG)")
        raise ModelUnavailable(f"USE_VLLM: vllm ended with code {code}: {last[-_SHOWN_CHARS:]}")

    def end(self) -> None:
        """Tell it to end, and end it with the processes that it has started. Returns when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_END_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.append(line.strip())
                logger.debug("vllm", line=line.strip()[-_SHOWN_CHARS:])


def _free_port() -> int:
    """Return a port that is free now, below those that the kernel gives to outgoing connections: vLLM binds it only
    after it has loaded its libraries."""
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(first_of_kernel // 2, first_of_kernel), _PORTS_TRIED):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ModelUnavailable("USE_VLLM: no port is free.")
