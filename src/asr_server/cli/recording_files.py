"""The recordings that a command line names, and the places of their results.

Recordings are files, directories and standard input; directories are filtered by the first bytes of each file. Results
go to standard output in the order of the recordings, or into a file for each, written atomically.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO, Protocol

from asr_server.audio import sniff
from asr_server.cli.failure import AlreadyDone, Failure, UsageError, shown
from asr_server.cli.formats import Format

_RESULT_SUFFIXES = {one.suffix for one in Format}
STDIN = "-"
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RecordingSource:
    """A recording."""

    path: Path | None  # None for standard input
    below: Path  # its path below the directory that was named
    spooled: BinaryIO | None = None  # the content of a pipe, in a temporary file
    listed: bool = False  # it was found in a directory, and not named itself

    @property
    def name(self) -> str:
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
) -> tuple[list[RecordingSource], list[Skipped]]:
    """Return all recordings in the order of the arguments, each once, and what was skipped in directories.

    A file that is named is taken whatever its content; a pipe is read to its end. Raises `UsageError` for a URL, and
    where standard input is a terminal.
    """
    sources: dict[str, RecordingSource] = {}
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


def _without_results(skipped: Sequence[Skipped], sources: Iterable[RecordingSource]) -> list[Skipped]:
    """Leave out the files that were made of recordings: `talk.txt` and `talk.de.srt` next to `talk.mp3`."""
    stems = {stem for source in sources if source.path for stem in (source.path, source.path.with_suffix(""))}

    def is_result(path: Path) -> bool:
        return path.suffix in _RESULT_SUFFIXES and not stems.isdisjoint(
            (path.with_suffix(""), path.with_suffix("").with_suffix(""))
        )

    return [item for item in skipped if not is_result(item.path)]


def _named(path: Path) -> RecordingSource:
    try:
        pipe = path.open("rb") if path.is_fifo() else None
    except OSError:
        pipe = None  # opening it again gives the error
    if pipe is None:
        return RecordingSource(path, Path(path.name))
    with pipe:
        return RecordingSource(path, Path(path.name), _spool(pipe))


def _within(directory: Path, recursive: bool) -> Iterator[RecordingSource | Skipped]:
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
            yield Skipped(path, reason) if reason else RecordingSource(path, path.relative_to(directory), listed=True)
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
    """Return why a file in a directory is skipped; "" if it is a recording."""
    if path.name.startswith("."):
        return "hidden"
    try:
        if not path.is_file():
            return "not a file"
        with path.open("rb") as file:
            found = sniff.locate(lambda count, at: os.pread(file.fileno(), count, at))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if found and found[0] in sniff.DEMUXERS else "no audio or video"


def _standard_input() -> RecordingSource:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("nothing is piped in. Say which file, or: asr-server COMMAND - < recording.wav")
    return RecordingSource(None, Path("stdin"), _spool(sys.stdin.buffer))


def _spool(stream: BinaryIO) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller of `open`
    shutil.copyfileobj(stream, file)
    file.flush()
    return file


Targets = Mapping[RecordingSource, Mapping[Format, Path]]
Contents = Mapping[Format, str | bytes]


class Existing(Enum):
    """The treatment of files that exist: it is an error, they are replaced, or they are kept and not made again.

    Files of recordings that were found in a directory are kept where it would be an error.
    """

    FAIL = auto()
    REPLACE = auto()
    KEEP = auto()


class Sink(Protocol):
    """Gets either `deliver` or `drop`, once for every source."""

    def check(self, source: RecordingSource) -> None:
        """Raise `Failure` where `deliver` would fail, `AlreadyDone` where it would do nothing. Called before the
        recording is processed."""

    def delta(self, source: RecordingSource, text: str) -> None:
        """New text while the recording is processed."""

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Deliver the result in each format; after deltas, its end. Raises `Failure`."""

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Note that this source has failed."""

    def close(self) -> None:
        """Write what has been held back: no more sources will come."""


class StdoutSink:
    """Standard output, in UTF-8 whatever the locale. Several results keep their order and have headers."""

    def __init__(self, sources: Sequence[RecordingSource], out: BinaryIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._order = list(sources)
        self._ready: dict[RecordingSource, str | None] = {}
        self._next = 0
        self._first = True

    def check(self, source: RecordingSource) -> None:
        """Standard output is always there."""

    def delta(self, source: RecordingSource, text: str) -> None:
        """Written at once: streamed sources are processed one by one."""
        if source not in self._ready:
            self._ready[source] = ""
            self._write(self._header(source))
        self._write(text)

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Written after all sources before it. There is one format."""
        (content,) = contents.values()
        assert isinstance(content, str), "other formats have files"
        if source in self._ready:  # its deltas have been written
            self._write(content)
            self._next += 1
            return
        self._ready[source] = content
        self._write_ready()

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Drop a source. The sources after it no longer wait for it."""
        if source in self._ready:
            self._write("\n")
        self._ready[source] = None
        self._write_ready()

    def close(self) -> None:
        """Write the results that wait for sources which will not come."""
        for source in self._order[self._next :]:
            self._ready.setdefault(source, None)
        self._write_ready()

    def _write_ready(self) -> None:
        while self._next < len(self._order) and self._order[self._next] in self._ready:
            source = self._order[self._next]
            content = self._ready[source]
            if content is not None:
                self._write(self._header(source) + content)
            self._next += 1

    def _header(self, source: RecordingSource) -> str:
        if len(self._order) == 1:
            return ""
        gap, self._first = ("" if self._first else "\n"), False
        return f"{gap}==> {source.name} <==\n"

    def _write(self, text: str) -> None:
        self._out.write(text.encode())
        self._out.flush()


class FileSink:
    """A sink with one or more files for each source."""

    def __init__(self, targets: Targets, existing: Existing = Existing.FAIL) -> None:
        self._targets = targets
        self._existing = existing

    def check(self, source: RecordingSource) -> None:
        """Files that exist are treated as `Existing` says. Directories are created, and must be writable."""
        targets = self._targets[source].values()
        kept = 0
        for target in targets:
            try:
                if target.exists() and not target.is_file():
                    raise Failure("cannot_write", f"{shown(str(target))} is not a file.")
                if target.exists() and self._existing is not Existing.REPLACE:
                    if not self._keeps(source):
                        raise _exists(target)
                    kept += 1
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unwritable(target, error) from None
            if not os.access(target.parent, os.W_OK):
                raise Failure("cannot_write", f"{shown(str(target.parent))} is not writable.")
        if kept == len(targets):
            raise AlreadyDone

    def delta(self, source: RecordingSource, text: str) -> None:
        """Ignored: the files are written at the end."""

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Write each content to a temporary file in the same directory, then move it."""
        for one, target in self._targets[source].items():
            try:
                content = contents[one]
                with whole_file(target.resolve(), replace=self._existing is Existing.REPLACE) as file:
                    file.write(content.encode() if isinstance(content, str) else content)
            except FileExistsError:
                if not self._keeps(source):
                    raise _exists(target) from None
            except OSError as error:
                raise _unwritable(target, error) from None

    def _keeps(self, source: RecordingSource) -> bool:
        return self._existing is Existing.KEEP or source.listed

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Do nothing: there is nothing to undo."""

    def close(self) -> None:
        """Do nothing: there is nothing to write."""


def targets(sources: Sequence[RecordingSource], place: Path | None, endings: Mapping[Format, str]) -> Targets:
    """Return the files of each source: under the directory `place`, or next to it where that is None.

    `talk.wav` becomes `talk.txt`; where two would share a file, both keep their whole name: `talk.wav.txt`. Raises
    `UsageError` where a file would be a recording of the same command.
    """
    bases = {source: _base(source, place) for source in sources}
    counts = Counter(base.with_suffix("") for base in bases.values())
    chosen = {
        source: {
            one: base.with_name(base.name + ending) if counts[base.with_suffix("")] > 1 else base.with_suffix(ending)
            for one, ending in endings.items()
        }
        for source, base in bases.items()
    }
    check_distinct(chosen)
    return chosen


def _base(source: RecordingSource, place: Path | None) -> Path:
    if place is not None:
        return place / source.below
    if source.path is None:
        raise UsageError("standard input has no directory; say --output FILE, or --output - for standard output.")
    return source.path


def check_distinct(chosen: Targets) -> None:
    """Raise `UsageError` where a file would be a recording of the same command, or that of another one."""
    read = {os.path.realpath(source.path) for source in chosen if source.path}
    seen = set()
    for target in (target for targets in chosen.values() for target in targets.values()):
        real = os.path.realpath(target)
        if real in read:
            raise UsageError(f"{shown(str(target))} is one of the recordings; it would be overwritten.")
        if real in seen:
            raise UsageError(f"two recordings would be written to {shown(str(target))}.")
        seen.add(real)


@contextmanager
def whole_file(target: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a file to write, which becomes `target` when the block ends without an error. Raises `OSError`."""
    # Not named after the target: its name may have the maximum length already.
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            part.replace(target)
        else:
            _move_to_new(part, target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_file(target: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a file as `whole_file` does, and make its directory. Raises `Failure`."""
    if target.is_dir():
        raise Failure("cannot_write", f"{shown(str(target))} is not a file.")
    exists = Failure("output_exists", f"{shown(str(target))} exists; --force replaces it.")
    if target.exists() and not replace:
        raise exists
    try:
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True)
        with whole_file(target.resolve(), replace=replace) as file:
            yield file
    except OSError as error:
        if isinstance(error, FileExistsError) and target.exists():  # since a moment ago
            raise exists from None
        raise _unwritable(target, error) from None


def _move_to_new(part: Path, target: Path) -> None:
    """A link, unlike a rename, fails where the target exists, even if it was created a moment ago."""
    try:
        target.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # this file system has no hard links
        if target.exists():
            raise FileExistsError from None
        part.replace(target)


def _exists(target: Path) -> Failure:
    return Failure("output_exists", f"{shown(str(target))} exists; --force replaces it, --skip-existing keeps it.")


def _unwritable(target: Path, error: OSError) -> Failure:
    return Failure("cannot_write", f"{shown(str(target))}: {error.strerror}.")
