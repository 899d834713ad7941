"""`vllm serve` as a child process: started, waited for, and ended with this process."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from loguru import logger

from asr_server.core.environment import process_environment
from asr_server.core.errors import ModelUnavailable

# Time to start, with a download of the model and compilation for its shapes; to answer again; to shut down.
_START_S, _AGAIN_S, _END_S = 3600.0, 60.0, 20.0
_POLL_S = 0.5
_KEPT_LINES, _SHOWN_CHARS = 20, 300
# Sends SIGTERM to the command when the thread that started it ends, also if this process is killed.
_WITH_PARENT = ("setpriv", "--pdeathsig=TERM", "--")


class VllmProcess:
    """A process that runs until `end`. It is reachable at `url` with `key`, only from this machine."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process. `command`: without the address. Raises `ModelUnavailable`."""
        self.key, port = secrets.token_urlsafe(24), _free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        self._give_up_s = time.monotonic() + _START_S
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            self._process = subprocess.Popen(
                [*_WITH_PARENT, *command, "--host", "127.0.0.1", f"--port={port}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=process_environment(VLLM_API_KEY=self.key, VLLM_NO_USAGE_STATS="1"),
                start_new_session=True,  # Ctrl-C reaches only this process, which ends it
            )
        except OSError as error:
            raise ModelUnavailable(f"USE_VLLM: setpriv ({error.strerror}): install util-linux.") from None
        self._reader = threading.Thread(target=self._read, name="vllm-log", daemon=True)
        self._reader.start()

    def expect_again(self) -> None:
        """Note that a server that was ready did not answer: `wait` gives it a minute, however long ago it started."""
        self._give_up_s = time.monotonic() + _AGAIN_S

    def wait(self) -> None:
        """Wait a moment for the server to start. Raises `ModelUnavailable` if it has ended or takes too long."""
        try:
            code = self._process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() < self._give_up_s:
                return
            self.end()
            raise ModelUnavailable("USE_VLLM: vllm was not ready in time.") from None
        self._reader.join(_END_S)
        last = next((line for line in reversed(self._lines) if "Error" in line), "its output is in the log (DEBUG)")
        raise ModelUnavailable(f"USE_VLLM: vllm ended with code {code}: {last[-_SHOWN_CHARS:]}")

    def end(self) -> None:
        """End the process and those that it has started: with SIGTERM, then what is left of them with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self._reader.join(_END_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.append(line.strip())
                logger.debug("vllm", line=line.strip()[-_SHOWN_CHARS:])


def _free_port() -> int:
    """Return a free port below the range from which the kernel takes ports for outgoing connections: vLLM binds its
    port only after it has loaded its libraries."""
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(first_of_kernel // 2, first_of_kernel), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ModelUnavailable("USE_VLLM: no port is free.")
