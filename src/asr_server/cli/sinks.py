"""Where transcripts go: standard output in the order of the recordings, or a file each, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from asr_server.cli.failure import Failure, UsageError, shown
from asr_server.cli.sources import Source
from asr_server.service.requests import ResponseFormat

_SUFFIXES = {
    ResponseFormat.TEXT: ".txt",
    ResponseFormat.JSON: ".json",
    ResponseFormat.VERBOSE_JSON: ".json",
    ResponseFormat.SRT: ".srt",
    ResponseFormat.VTT: ".vtt",
}


class Sink(Protocol):
    """Hears of every source once: `deliver` or `drop`."""

    def check(self, source: Source) -> None:
        """Raise `Failure` where delivering would fail: asked before any work."""

    def words(self, source: Source, text: str) -> None:
        """New text, as it comes."""

    def deliver(self, source: Source, content: str) -> None:
        """The whole. Raises `Failure`."""

    def drop(self, source: Source) -> None:
        """There will be nothing of this one."""

    def close(self) -> None:
        """No more comes: give out what was kept."""


class StdoutSink:
    """Standard output, UTF-8 whatever the locale. With several sources each has a header, and they keep their order."""

    def __init__(self, sources: Sequence[Source], out: BinaryIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._order = list(sources)
        self._ready: dict[Source, str | None] = {}
        self._next = 0
        self._first = True

    def check(self, source: Source) -> None:
        """Nothing stands in the way."""

    def words(self, source: Source, text: str) -> None:
        """At once: sources that stream come one by one."""
        if source not in self._ready:
            self._ready[source] = ""
            self._write(self._header(source))
        self._write(text)

    def deliver(self, source: Source, content: str) -> None:
        """Written when all sources before it are."""
        if source in self._ready:  # its words are written already
            self._write(content)
            self._next += 1
            return
        self._ready[source] = content
        self._give_out()

    def drop(self, source: Source) -> None:
        """The next may come."""
        if source in self._ready:
            self._write("\n")
        self._ready[source] = None
        self._give_out()

    def close(self) -> None:
        """What waits for a source that will not come is written without it."""
        for source in self._order[self._next :]:
            self._ready.setdefault(source, None)
        self._give_out()

    def _give_out(self) -> None:
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
    """A file for each source. Never replaces one without `force`."""

    def __init__(self, targets: dict[Source, Path], *, force: bool) -> None:
        self._targets = targets
        self._force = force

    def check(self, source: Source) -> None:
        """The file must be new or `force` set, and its directory writable; it is made if it is not there."""
        target = self._targets[source]
        try:
            if target.exists() and not self._force:
                raise _exists(target)
            if target.exists() and not target.is_file():
                raise Failure("cannot_write", f"{shown(str(target))} is not a file.")
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(target, error) from None
        if not os.access(target.parent, os.W_OK):
            raise Failure("cannot_write", f"{shown(str(target.parent))} is not writable.")

    def words(self, source: Source, text: str) -> None:
        """A file gets the whole."""

    def deliver(self, source: Source, content: str) -> None:
        """Beside its place first, then moved there."""
        target = self._targets[source]
        try:
            _write_whole(target.resolve(), content.encode(), replace=self._force)
        except FileExistsError:
            raise _exists(target) from None
        except OSError as error:
            raise _unwritable(target, error) from None

    def drop(self, source: Source) -> None:
        """No file."""

    def close(self) -> None:
        """Nothing was kept."""


def suffix(response_format: ResponseFormat, tag: str = "") -> str:
    """What a file's name ends in; `tag`: of the language of a translation, where players look for it."""
    return f".{tag}{_SUFFIXES[response_format]}" if tag else _SUFFIXES[response_format]


def targets(sources: Sequence[Source], place: Path | None, ending: str) -> dict[Source, Path]:
    """The file of each source: under the directory `place`, or beside it where that is None.

    `talk.wav` becomes `talk.txt`; where two would share a file, both keep their whole name: `talk.wav.txt`.
    Raises `UsageError` where a file would be a recording of the same command.
    """
    bases = {source: _base(source, place) for source in sources}
    short = {source: base.with_suffix(ending) for source, base in bases.items()}
    taken = Counter(short.values())
    chosen = {s: base.with_name(base.name + ending) if taken[short[s]] > 1 else short[s] for s, base in bases.items()}
    _check_apart(sources, chosen)
    return chosen


def _base(source: Source, place: Path | None) -> Path:
    if place is not None:
        return place / source.below
    if source.path is None:
        raise UsageError("standard input lies beside nothing; say --output FILE, or --output - for standard output.")
    return source.path


def _check_apart(sources: Sequence[Source], chosen: dict[Source, Path]) -> None:
    read = {os.path.realpath(source.path) for source in sources if source.path}
    seen = set()
    for target in chosen.values():
        real = os.path.realpath(target)
        if real in read:
            raise UsageError(f"{shown(str(target))} is one of the recordings; it would be overwritten.")
        if real in seen:
            raise UsageError(f"two recordings would be written to {shown(str(target))}.")
        seen.add(real)


def single(source: Source, target: Path) -> dict[Source, Path]:
    """One source, one named file. Raises `UsageError` where they are the same."""
    chosen = {source: target}
    _check_apart([source], chosen)
    return chosen


def _write_whole(target: Path, content: bytes, *, replace: bool) -> None:
    # Not named after the target: the longest name that a file can have would be too long with anything behind it.
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            part.replace(target)
        else:
            _move_to_new(part, target)
    finally:
        part.unlink(missing_ok=True)


def _move_to_new(part: Path, target: Path) -> None:
    """Unlike a rename, a link never takes another's place, however late that one came."""
    try:
        target.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # some file systems have no links
        if target.exists():
            raise FileExistsError from None
        part.replace(target)


def _exists(target: Path) -> Failure:
    return Failure("output_exists", f"{shown(str(target))} exists; --force replaces it.")


def _unwritable(target: Path, error: OSError) -> Failure:
    return Failure("cannot_write", f"{shown(str(target))}: {error.strerror}.")
