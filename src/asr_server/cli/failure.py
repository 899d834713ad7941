"""The errors of the commands, each reported to the user in one line, and the exit codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of all commands. Scripts rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_SERVER = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class CommandError(Exception):
    """An error that is shown in one line. It ends the command unless it is the failure of one recording among many."""

    exit_code = Exit.FAILED


class UsageError(CommandError):
    """The arguments or the settings are wrong; nothing was done."""

    exit_code = Exit.USAGE


class NoServer(CommandError):
    """The server cannot be reached, so the command ends. The message says what to do."""

    exit_code = Exit.NO_SERVER


class Failure(CommandError):
    """One recording failed. `code` is stable. `job_goes_on`: its job on the server has not failed."""

    def __init__(self, code: str, message: str, *, job_goes_on: bool = False) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.job_goes_on = job_goes_on


def shown(text: str) -> str:
    """Return `text` for a terminal, with question marks for control characters and what UTF-8 cannot encode."""
    return "".join(c if c.isprintable() else "?" for c in text)


def no_server(address: str, alternative: str = "") -> NoServer:
    return NoServer(
        f"no server answers at {address}. Start one (asr-server serve), or name another (--server URL){alternative}."
    )


@contextmanager
def server_errors(address: str, alternative: str = "") -> Iterator[None]:
    """Raise the errors of a client as `NoServer` and `Failure`."""
    from asr_server.client.connection import FileError, ServerUnreachable  # takes longer to import than help

    try:
        yield
    except ServerUnreachable as error:
        raise no_server(address, alternative) from error
    except FileError as error:
        raise Failure(error.code, error.message) from error


def complain(command: str, line: str) -> None:
    print(f"asr-server {command}: {line}", file=sys.stderr, flush=True)
