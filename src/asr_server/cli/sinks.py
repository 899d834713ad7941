"""The places of results: standard output in the order of the recordings, or a file for each, written atomically."""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO, Protocol

from asr_server.cli.failure import AlreadyDone, Failure, UsageError, shown
from asr_server.cli.formats import Format
from asr_server.cli.sources import Source

Targets = Mapping[Source, Mapping[Format, Path]]
Contents = Mapping[Format, str]


class Existing(Enum):
    """The treatment of files that exist: it is an error, they are replaced, or they are kept and not made again.

    Files of recordings that were found in a directory are kept where it would be an error.
    """

    FAIL = auto()
    REPLACE = auto()
    KEEP = auto()


class Sink(Protocol):
    """Gets either `deliver` or `drop`, once for every source."""

    def check(self, source: Source) -> None:
        """Raise `Failure` where `deliver` would fail, `AlreadyDone` where it would do nothing. Called before the
        recording is processed."""

    def delta(self, source: Source, text: str) -> None:
        """New text while the recording is processed."""

    def deliver(self, source: Source, contents: Contents) -> None:
        """Deliver the result in each format; after deltas, its end. Raises `Failure`."""

    def drop(self, source: Source) -> None:
        """Note that this source has failed."""

    def close(self) -> None:
        """Write what has been held back: no more sources will come."""


class StdoutSink:
    """Standard output, in UTF-8 whatever the locale. Several results keep their order and have headers."""

    def __init__(self, sources: Sequence[Source], out: BinaryIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._order = list(sources)
        self._ready: dict[Source, str | None] = {}
        self._next = 0
        self._first = True

    def check(self, source: Source) -> None:
        """Standard output is always there."""

    def delta(self, source: Source, text: str) -> None:
        """Written at once: streamed sources are processed one by one."""
        if source not in self._ready:
            self._ready[source] = ""
            self._write(self._header(source))
        self._write(text)

    def deliver(self, source: Source, contents: Contents) -> None:
        """Written after all sources before it. There is one format."""
        (content,) = contents.values()
        if source in self._ready:  # its deltas have been written
            self._write(content)
            self._next += 1
            return
        self._ready[source] = content
        self._write_ready()

    def drop(self, source: Source) -> None:
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

    def _header(self, source: Source) -> str:
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

    def check(self, source: Source) -> None:
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

    def delta(self, source: Source, text: str) -> None:
        """Ignored: the files are written at the end."""

    def deliver(self, source: Source, contents: Contents) -> None:
        """Write each content to a temporary file in the same directory, then move it."""
        for one, target in self._targets[source].items():
            try:
                with whole_file(target.resolve(), replace=self._existing is Existing.REPLACE) as file:
                    file.write(contents[one].encode())
            except FileExistsError:
                if not self._keeps(source):
                    raise _exists(target) from None
            except OSError as error:
                raise _unwritable(target, error) from None

    def _keeps(self, source: Source) -> bool:
        return self._existing is Existing.KEEP or source.listed

    def drop(self, source: Source) -> None:
        """Do nothing: there is nothing to undo."""

    def close(self) -> None:
        """Do nothing: there is nothing to write."""


def targets(sources: Sequence[Source], place: Path | None, endings: Mapping[Format, str]) -> Targets:
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


def _base(source: Source, place: Path | None) -> Path:
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
