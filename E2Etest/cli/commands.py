"""Runs `asr-server`: in this process, as a process of its own with pipes, or on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from unittest import mock

from asr_server.cli.main import main

COMMAND = [sys.executable, "-m", "asr_server"]
TIMEOUT_S = 110


def environment(**changes: str) -> dict[str, str]:
    """This process's, without what would change how a command behaves."""
    changing = {"MODEL_ID", "PORT", "HOST", "NO_COLOR", "FORCE_COLOR", "ASR_SERVER_URL"}
    kept = {k: v for k, v in os.environ.items() if k not in changing}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "100", **changes}


class _Input(io.TextIOWrapper):
    """Standard input: a pipe with these bytes, or a terminal at which nobody types."""

    def __init__(self, content: bytes | None) -> None:
        super().__init__(io.BytesIO(content or b""))
        self._is_terminal = content is None

    def isatty(self) -> bool:
        return self._is_terminal


def run(*arguments: object, stdin: bytes | None = b"", cwd: Path | None = None, **changes: str):
    """A run in this process, which takes a tenth of the time of another one: `returncode`, `stdout` and `stderr`.

    `stdin`: None is a terminal.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    given = [str(argument) for argument in arguments]
    with (
        mock.patch.dict(os.environ, environment(**changes), clear=True),
        mock.patch.multiple(sys, stdin=_Input(stdin), stdout=out, stderr=err),
        contextlib.chdir(cwd or os.curdir),
    ):
        try:
            code = main(given)
        except SystemExit as end:
            code = end.code
        out.flush(), err.flush()
    written = [stream.buffer.getvalue() for stream in (out, err)]
    return subprocess.CompletedProcess(given, code, *(_text(content) for content in written))


def _text(content: bytes) -> str | bytes:
    """Return the output as text, or as bytes if it is audio."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def command(*arguments: object, cwd: Path | None = None, **changes: str):
    """Run the command as its own process, whose libraries write to its output and read its environment at import."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        cwd=cwd,
        env=environment(**changes),
        check=False,
    )


def started(*arguments: object, **changes: str) -> subprocess.Popen:
    """A process under way, its output in pipes."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
    )


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
    with contextlib.suppress(OSError):  # Linux says so when the last process of a terminal is gone
        while piece := os.read(terminal, 65_536):
            seen += piece
    return seen
