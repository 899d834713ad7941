"""The recordings that a command line names, and the places of their results.

Recordings are files, directories and standard input. Files in directories are filtered by their first bytes. Results go
to standard output in the order of the recordings, or to files for each recording, written atomically.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from asr_server.audio import sniff
from asr_server.cli.failure import Failure, UsageError, shown
from asr_server.cli.formats import Format, suffix
from asr_server.cli.given_text import STANDARD

_RESULT_SUFFIXES = set(map(suffix, Format))
_TEXT = "a text or a subtitle file"
_EXISTS = "output_exists"
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
    """Return all recordings in the order of the arguments, each once, and the paths that were skipped in directories.

    A file named as an argument is accepted whatever its content; a pipe is read to its end. Raises `UsageError` for a
    URL, and if standard input is a terminal.
    """
    sources: dict[str, RecordingSource] = {}
    skipped: list[Skipped] = []
    for argument in arguments:
        if _URL.match(argument):
            raise UsageError(
                f"{shown(argument)} is a URL, and recordings are read from files. Fetch it first: "
                f"curl -L {shlex.quote(shown(argument))} | asr-server {command} -"
            )
        if argument == STANDARD:
            if sys.stdin is None or sys.stdin.isatty():
                raise UsageError("nothing is piped in. Say which file, or: asr-server COMMAND - < recording.wav")
            if STANDARD not in sources:
                sources[STANDARD] = RecordingSource(None, Path("stdin"), _spool(sys.stdin.buffer))
        elif os.path.isdir(argument):  # pathlib raises if a directory cannot be entered
            for item in _within(Path(argument), recursive, skipped):
                sources.setdefault(os.path.abspath(str(item.path)), item)
        elif os.path.abspath(argument) not in sources:
            path = Path(argument)
            sources[os.path.abspath(argument)] = RecordingSource(path, Path(path.name), _pipe_content(path))
    return list(sources.values()), skipped


def _within(directory: Path, recursive: bool, skipped: list[Skipped]) -> Iterator[RecordingSource]:
    """Yield recordings in the same order in each run. Texts are not listed as skipped: most are earlier results."""

    def skip(error: OSError) -> None:
        skipped.append(Skipped(Path(error.filename), f"cannot be read: {error.strerror}"))

    for top, folders, names in os.walk(directory, onerror=skip):
        parent = Path(top)
        reasons = {parent / name: _skip_folder(parent / name, recursive) for name in sorted(folders)}
        folders[:] = [folder.name for folder, reason in reasons.items() if not reason]
        files = {parent / name: _skip_file(parent / name) for name in sorted(names)}
        skipped += [Skipped(path, reason) for path, reason in (reasons | files).items() if reason not in ("", _TEXT)]
        yield from (
            RecordingSource(path, path.relative_to(directory), listed=True)
            for path, reason in files.items()
            if not reason
        )


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
    if found and found[0] in sniff.DEMUXERS:
        return ""
    return _TEXT if path.suffix in _RESULT_SUFFIXES else "no audio or video"


def _pipe_content(path: Path) -> BinaryIO | None:
    """Return the content of a named pipe, None for a file."""
    try:
        pipe = path.open("rb") if path.is_fifo() else None
    except OSError:
        return None  # opening it again gives the error
    if pipe is None:
        return None
    with pipe:
        return _spool(pipe)


def _spool(stream: BinaryIO) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the caller of `open`
    shutil.copyfileobj(stream, file)
    file.flush()
    return file


Targets = Mapping[RecordingSource, Mapping[Format, Path]]
Contents = Mapping[Format, str | bytes]


class Sink:
    """Receives results. For each source, `deliver` or `drop` is called once, unless `is_done` returned True."""

    def is_done(self, source: RecordingSource) -> bool:
        """Return True if `deliver` would do nothing. Raises `Failure` if it would fail. Called before the recording is
        processed."""
        return False

    def delta(self, source: RecordingSource, text: str) -> None:
        """Write new text while the recording is processed."""

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Deliver the result in each format, or only its end if deltas came before. Raises `Failure`."""

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Note that this source has failed."""

    def close(self) -> None:
        """Write the results that were held back: no more sources will come."""


class StdoutSink(Sink):
    """Standard output, in UTF-8 whatever the locale. Several results keep their order and have headers."""

    def __init__(self, sources: Sequence[RecordingSource], out: BinaryIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._several = len(sources) > 1
        self._waiting = deque(sources)
        self._ready: dict[RecordingSource, str | None] = {}  # None: it has failed
        self._streamed: RecordingSource | None = None  # the source of the last delta
        self._gap = ""  # before a header

    def delta(self, source: RecordingSource, text: str) -> None:
        """Write the text at once: streamed sources are processed one by one."""
        self._write(source, text)
        self._streamed = source

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Write the result after those of all earlier sources. There is only one format."""
        (content,) = contents.values()
        assert isinstance(content, str), "other formats have files"
        self._ready[source] = content
        self._write_ready()

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Drop a source. The sources after it no longer wait for it."""
        self._ready[source] = "\n" if source is self._streamed else None
        self._write_ready()

    def close(self) -> None:
        """Write the results that wait for earlier sources, which will not come."""
        self._ready = dict.fromkeys(self._waiting) | self._ready
        self._write_ready()

    def _write_ready(self) -> None:
        while self._waiting and self._waiting[0] in self._ready:
            source = self._waiting.popleft()
            if (content := self._ready[source]) is not None:
                self._write(source, content)

    def _write(self, source: RecordingSource, text: str) -> None:
        if self._several and source is not self._streamed:
            text = f"{self._gap}==> {source.name} <==\n{text}"
            self._gap = "\n"
        self._out.write(text.encode())
        self._out.flush()


class FileSink(Sink):
    """A sink with one or more files for each source.

    An existing file is an error, or it is replaced (`replace`), or it is kept and not made again (`skip`). For a
    recording that was found in a directory, an existing file is kept instead of being an error.
    """

    def __init__(self, targets: Targets, *, replace: bool = False, skip: bool = False) -> None:
        self._targets = targets
        self._replace = replace
        self._skip = skip

    def is_done(self, source: RecordingSource) -> bool:
        """Return True if all files exist. Creates the directories of missing files, which must be writable."""
        targets = list(self._targets[source].values())
        missing = [target for target in targets if not _is_kept(target, replace=self._replace)]
        if len(missing) < len(targets) and not self._keeps(source):
            raise exists(next(target for target in targets if target not in missing))
        for target in missing:
            _make_directory(target)
        return not missing

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Write each content to a temporary file in the same directory, then move it."""
        for one, target in self._targets[source].items():
            content = contents[one]
            try:
                with new_file(target, replace=self._replace) as file:
                    file.write(content.encode() if isinstance(content, str) else content)
            except Failure as failure:
                if failure.code != _EXISTS or not self._keeps(source):
                    raise

    def _keeps(self, source: RecordingSource) -> bool:
        return self._skip or source.listed


def targets(sources: Sequence[RecordingSource], place: Path | None, endings: Mapping[Format, str]) -> Targets:
    """Return the files of each source: under the directory `place`, or next to the source if `place` is None.

    `talk.wav` becomes `talk.txt`; if two sources would share a file, both keep their whole name: `talk.wav.txt`. Raises
    `UsageError` if a file would overwrite a recording of the same command.
    """
    if place is None and any(source.path is None for source in sources):
        raise UsageError("standard input has no directory; say --output FILE, or --output - for standard output.")
    bases = {source: place / source.below if place else source.path or source.below for source in sources}
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


def check_distinct(chosen: Targets) -> None:
    """Raise `UsageError` if a file would overwrite a recording of the same command, or another recording's file."""
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
def new_file(target: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a new file, which becomes `target` when the block ends without an error. Creates its directory. Raises
    `Failure`."""
    if _is_kept(target, replace=replace):
        raise exists(target)
    _make_directory(target)
    whole = Path(os.path.realpath(target))  # `resolve` raises where links form a loop
    # Not named after the target: its name may have the maximum length already.
    part = whole.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if _is_kept(whole, replace=replace):  # another program may have created it in the meantime
            raise exists(target)
        part.replace(whole)
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:
        part.unlink(missing_ok=True)


def _is_kept(target: Path, *, replace: bool) -> bool:
    """Return True if the file exists and is not to be replaced. Raises `Failure`."""
    try:
        if target.exists() and not target.is_file():
            raise Failure("cannot_write", f"{shown(str(target))} is not a file.")
        return target.exists() and not replace
    except OSError as error:
        raise _unwritable(target, error) from None


def _make_directory(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(target, error) from None
    if not os.access(target.parent, os.W_OK):
        raise Failure("cannot_write", f"{shown(str(target.parent))} is not writable.")


def exists(target: Path | str) -> Failure:
    return Failure(_EXISTS, f"{shown(str(target))} exists; --force replaces it.")


def _unwritable(target: Path, error: OSError) -> Failure:
    return Failure("cannot_write", f"{shown(str(target))}: {error.strerror}.")
