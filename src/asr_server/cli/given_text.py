"""A text argument of a command: the text itself, the name of a file, or `-` for standard input."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from asr_server.cli.failure import Failure, UsageError, shown

STANDARD = "-"
_TEXT_ENDINGS = (".txt", ".md")
# More than any server takes in one request.
_MAX_TEXT_BYTES = 8 * 2**20


def given_text(given: str | None) -> str:
    """Return the given text, the content of the named file, or piped text. Raises `UsageError` and `Failure`."""
    if given == STANDARD or given is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("there is no text. Say it as an argument, name a file, or pipe a text in.")
        return _read(sys.stdin.buffer, "(standard input)")
    if os.path.isfile(given):
        try:
            with open(given, "rb") as file:
                return _read(file, shown(given))
        except OSError as error:
            raise Failure("cannot_read", f"{shown(given)}: {error.strerror}.") from None
    if given.endswith(_TEXT_ENDINGS) and not any(map(str.isspace, given)):
        raise Failure("no_such_file", f"{shown(given)}: There is no such file.")
    return given


def _read(file: BinaryIO, name: str) -> str:
    content = file.read(_MAX_TEXT_BYTES + 1)
    if len(content) > _MAX_TEXT_BYTES:
        raise Failure("cannot_read", f"{name}: It has more than {_MAX_TEXT_BYTES // 2**20} MiB.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Failure("cannot_read", f"{name}: It is not text in UTF-8.") from None
