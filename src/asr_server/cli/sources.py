"""Finds the recordings that a command line names: files, directories, standard input. Directories are filtered by
the first bytes of each file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from asr_server.audio import sniff
from asr_server.cli.failure import Failure, UsageError, shown
from asr_server.cli.formats import Format

_RESULT_SUFFIXES = {one.suffix for one in Format}
STDIN = "-"
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Source:
    """A recording."""

    path: Path | None  # None for standard input
    below: Path  # its path below the directory that was named
    spooled: BinaryIO | None = None  # the content of a pipe, in a temporary file
    listed: bool = False  # it was found in a directory, and not named itself

    @property
    def name(self) -> str:
        """Return the name in messages and headers."""
        return shown(str(self.path)) if self.path else "(standard input)"

    def open(self) -> BinaryIO:
        """Return the recording as a file on disk, which the caller closes. A pipe can be opened once. Raises
        `Failure`."""
        if self.spooled is not None:
            return self.spooled
        assert self.path is not None
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            raise Failure("no_such_file", "There is no such file.") from None
        except OSError as error:
            raise Failure("cannot_read", f"{error.strerror}.") from None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or directory within a named directory that is not processed."""

    path: Path
    reason: str  # why it is skipped


def find(
    arguments: Sequence[str], *, recursive: bool, command: str = "transcribe"
) -> tuple[list[Source], list[Skipped]]:
    """Return all recordings in the order of the arguments, each once, and what was skipped in directories.

    A file that is named is taken whatever its content; a pipe is read to its end. Raises `UsageError` for a URL, and
    where standard input is a terminal.
    """
    sources: dict[str, Source] = {}
    skipped: list[Skipped] = []
    for argument in arguments:
        if _URL.match(argument):
            raise UsageError(
                f"{shown(argument)} is a URL, and recordings are read from files. Fetch it first: "
                f"curl -L {shlex.quote(shown(argument))} | asr-server {command} -"
            )
        if argument == STDIN:
            if STDIN not in sources:
                sources[STDIN] = _standard_input()
        elif os.path.isdir(argument):  # pathlib raises where a directory cannot be entered
            for item in _within(Path(argument), recursive):
                if isinstance(item, Skipped):
                    skipped.append(item)
                else:
                    sources.setdefault(os.path.abspath(str(item.path)), item)
        else:
            path = Path(argument)
            if os.path.abspath(path) not in sources:
                sources[os.path.abspath(path)] = _named(path)
    return list(sources.values()), _without_results(skipped, sources.values())


def _without_results(skipped: Sequence[Skipped], sources: Iterable[Source]) -> list[Skipped]:
    """Leave out the files that were made of recordings: `talk.txt` and `talk.de.srt` next to `talk.mp3`."""
    stems = {stem for source in sources if source.path for stem in (source.path, source.path.with_suffix(""))}

    def is_result(path: Path) -> bool:
        return path.suffix in _RESULT_SUFFIXES and not stems.isdisjoint(
            (path.with_suffix(""), path.with_suffix("").with_suffix(""))
        )

    return [item for item in skipped if not is_result(item.path)]


def _named(path: Path) -> Source:
    try:
        pipe = path.open("rb") if path.is_fifo() else None
    except OSError:
        pipe = None  # opening it again gives the error
    if pipe is None:
        return Source(path, Path(path.name))
    with pipe:
        return Source(path, Path(path.name), _spool(pipe))


def _within(directory: Path, recursive: bool) -> Iterator[Source | Skipped]:
    """Sorted, so that two runs have the same order."""
    unread: list[OSError] = []
    for top, folders, names in os.walk(directory, onerror=unread.append):
        parent = Path(top)
        skipped = {name: reason for name in sorted(folders) if (reason := _skip_folder(parent / name, recursive))}
        folders[:] = sorted(set(folders) - set(skipped))
        for name, reason in skipped.items():
            yield Skipped(parent / name, reason)
        for name in sorted(names):
            path = parent / name
            reason = _skip_file(path)
            yield Skipped(path, reason) if reason else Source(path, path.relative_to(directory), listed=True)
    for error in unread:
        yield Skipped(Path(error.filename), f"cannot be read: {error.strerror}")


def _skip_folder(folder: Path, recursive: bool) -> str:
    """Return why a directory within a directory is skipped; "" when it is searched."""
    if folder.name.startswith("."):
        return "hidden"
    if os.path.islink(folder):
        return "a link to a directory"
    return "" if recursive else "a directory; -r searches it"


def _skip_file(path: Path) -> str:
    """Return why a file in a directory is skipped; "" when its first bytes are those of a recording."""
    if path.name.startswith("."):
        return "hidden"
    try:
        if not path.is_file():
            return "not a file"
        with path.open("rb") as file:
            head = file.read(sniff.HEAD_BYTES)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    # An ID3 tag may be longer than `head`; only audio files have one.
    return "" if sniff.id3_bytes(head) or sniff.demuxer_of(head) else "no audio or video"


def _standard_input() -> Source:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("nothing is piped in. Say which file, or: asr-server COMMAND - < recording.wav")
    return Source(None, Path("stdin"), _spool(sys.stdin.buffer))


def _spool(stream: BinaryIO) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller of `open`
    shutil.copyfileobj(stream, file)
    file.flush()
    return file
