"""Runs `asr-server` as a process of its own: with pipes, or on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "asr_server"]
TIMEOUT_S = 110


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what would change how a command behaves."""
    changing = {"MODEL_ID", "PORT", "HOST", "NO_COLOR", "FORCE_COLOR", "ASR_SERVER_URL"}
    kept = {k: v for k, v in os.environ.items() if k not in changing}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "100", **changes}


def command(*arguments: object, stdin: bytes = b"", cwd: Path | None = None, **changes: str):
    """A finished run: `returncode`, and `stdout` and `stderr` as text."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        cwd=cwd,
        env=environment(**changes),
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def started(*arguments: object, **changes: str) -> subprocess.Popen:
    """A process under way, its output in pipes. Ctrl-C stops it."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    """In a new process: SIGINT stops it, also where a shell has started the tests with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def on_terminal(*arguments: object, typed: bytes = b"", stdout: Path | None = None, **changes: str) -> tuple[int, str]:
    """Run on a pseudo-terminal of 100 columns: the exit code, and all that the terminal was sent.

    `typed` is what the user types; `stdout`: a file for standard output in place of the terminal.
    """
    outer, inner = pty.openpty()
    sink = stdout.open("wb") if stdout else None
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=inner,
        stdout=sink or inner,
        stderr=inner,
        env=environment(**changes),
        start_new_session=True,
    )
    os.close(inner)
    os.write(outer, typed)
    seen = _read_all(outer)
    os.close(outer)
    if sink:
        sink.close()
    return process.wait(timeout=TIMEOUT_S), seen.decode()


def _read_all(terminal: int) -> bytes:
    seen = b""
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # Linux says so when the last process of a terminal is gone
            return seen
        if not piece:
            return seen
        seen += piece
