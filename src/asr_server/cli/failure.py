"""What can go wrong in a command, as a person needs it: one line and an exit code. Not the server's errors."""

from __future__ import annotations

import sys
from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of every command: scripts may rely on them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_SERVER = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class UsageError(Exception):
    """The command line asks for something that cannot be; nothing was done."""


class NoServer(Exception):
    """Nothing answers at the address, so nothing more can be done; the message says what to do."""


class Failure(Exception):
    """One recording could not be done; the others go on. `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def shown(text: str) -> str:
    """`text` with what would steer a terminal, or cannot be written as UTF-8, as question marks."""
    return "".join(c if c.isprintable() else "?" for c in text)


def no_server(address: str, way_out: str = "") -> NoServer:
    """What to say where nothing answers."""
    return NoServer(
        f"no server answers at {address}. Start one (asr-server serve --port 8100), or name another "
        f"(--server URL){way_out}."
    )


def complain(command: str, line: str) -> None:
    """One line on stderr, named after the command."""
    print(f"asr-server {command}: {line}", file=sys.stderr, flush=True)
