"""Which recordings a command line means: files, directories, a pipe. Looks at first bytes, decodes nothing."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from asr_server.audio import sniff
from asr_server.cli.failure import Failure, UsageError, shown

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Source:
    """One recording. `path`: None for standard input. `below`: its path under the directory that was named.

    `kept`: what came through a pipe, in a file without a name.
    """

    path: Path | None
    below: Path
    kept: BinaryIO | None = None

    @property
    def name(self) -> str:
        """What people are shown."""
        return shown(str(self.path)) if self.path else "(standard input)"

    def open(self) -> BinaryIO:
        """The recording as a file on disk, to be closed by the caller; once for a pipe. Raises `Failure`."""
        if self.kept is not None:
            return self.kept
        assert self.path is not None
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise Failure("no_such_file", "There is no such file.") from None
        except OSError as error:
            raise Failure("cannot_read", f"{error.strerror}.") from None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What lies in a named directory and is not transcribed."""

    path: Path
    reason: str


def find(arguments: Sequence[str], *, recursive: bool) -> tuple[list[Source], list[LeftOut]]:
    """All recordings in the order of the arguments, each once, and what was left out of directories.

    A file that is named is taken whatever it is; a pipe is read to its end. Raises `UsageError` where standard input is
    a keyboard.
    """
    sources: dict[str, Source] = {}
    left_out: list[LeftOut] = []
    for argument in arguments:
        if argument == STDIN:
            if STDIN not in sources:
                sources[STDIN] = _standard_input()
        elif os.path.isdir(argument):  # pathlib raises where a directory is closed
            for item in _within(Path(argument), recursive):
                if isinstance(item, LeftOut):
                    left_out.append(item)
                else:
                    sources.setdefault(os.path.abspath(str(item.path)), item)
        else:
            path = Path(argument)
            if os.path.abspath(path) not in sources:
                sources[os.path.abspath(path)] = _named(path)
    return list(sources.values()), left_out


def _named(path: Path) -> Source:
    try:
        pipe = path.open("rb") if path.is_fifo() else None
    except OSError:
        pipe = None  # opening it again will say why
    if pipe is None:
        return Source(path, Path(path.name))
    with pipe:
        return Source(path, Path(path.name), _kept(pipe))


def _within(directory: Path, recursive: bool) -> Iterator[Source | LeftOut]:
    """Sorted, so that two runs do the same."""
    unread: list[OSError] = []
    for top, folders, names in os.walk(directory, onerror=unread.append):
        here = Path(top)
        skipped = {name: reason for name in sorted(folders) if (reason := _passed_by(here / name, recursive))}
        folders[:] = sorted(set(folders) - set(skipped))
        for name, reason in skipped.items():
            yield LeftOut(here / name, reason)
        for name in sorted(names):
            path = here / name
            reason = _unfit(path)
            yield LeftOut(path, reason) if reason else Source(path, path.relative_to(directory))
    for error in unread:
        yield LeftOut(Path(error.filename), f"cannot be read: {error.strerror}")


def _passed_by(folder: Path, recursive: bool) -> str:
    """Why a directory within a directory is not gone into; "" when it is."""
    if folder.name.startswith("."):
        return "hidden"
    if os.path.islink(folder):
        return "a link to a directory"
    return "" if recursive else "a directory; -r goes into it"


def _unfit(path: Path) -> str:
    """Why a file that was not named itself is no recording; "" when it is one by its first bytes."""
    if path.name.startswith("."):
        return "hidden"
    try:
        if not path.is_file():
            return "not a file"
        with path.open("rb") as file:
            head = file.read(sniff.HEAD_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    # An ID3 tag may be longer than what was read; only audio has one.
    return "" if sniff.id3_bytes(head) or sniff.demuxer_of(head) else "no audio or video"


def _standard_input() -> Source:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("nothing is piped in. Say which file, or: asr-server COMMAND - < recording.wav")
    return Source(None, Path("stdin"), _kept(sys.stdin.buffer))


def _kept(stream: BinaryIO) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # whoever opens the source closes it
    shutil.copyfileobj(stream, file)
    file.flush()
    return file
