"""Jobs on disk: a folder for each, with the recording, the clips of known speakers, the record and the result; or with
a text and the speech that is made of it.

Each file is written under another name and then renamed, so that a server that dies at any point leaves whole files.
The directory may hold things of others: only folders with the name of a job are read, and only files of a job removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from loguru import logger

from asr_server.core.errors import JobsUnavailable
from asr_server.features.shared_jobs import migration
from asr_server.features.speakers.voices import UNREADABLE_VOICES, VOICES
from asr_server.features.speech_output.spoken_parts import SpokenParts
from asr_server.jobs import stored_record
from asr_server.jobs.record import JobRecord, JobRequest, clips, is_id, with_clips
from asr_server.recordings.requests import MAX_KNOWN_SPEAKERS

# The recording of a job that speaks is its text.
_RECORD, _RECORDING, _RESULT = "job.json", "recording", "result"
_NEW_RESULT, _SPEECH, _SPOKEN_PARTS = "result.part", "speech", "spoken-parts"
_CLIPS = tuple(f"clip-{number}" for number in range(MAX_KNOWN_SPEAKERS))
# In the order in which they are removed: a job that is removed in part must not look as if it had never been accepted.
_FILES = (_RECORDING, *_CLIPS, _SPEECH, _SPOKEN_PARTS, _RESULT, _NEW_RESULT, "job.part", _RECORD)
_JOBS, _UNREADABLE, _LOCK = "jobs", "unreadable-jobs", "lock"
_FOLDER_BYTES = 4096
# All that servers put into the directory.
_CONTENT = {_JOBS, _UNREADABLE, _LOCK, VOICES, UNREADABLE_VOICES}
_DAMAGED = (FileNotFoundError, *stored_record.DAMAGED)


class JobStore:
    """The jobs under one directory, which belongs to one server at a time.

    Raises `JobsUnavailable` when it cannot be written, or another server has it.
    """

    def __init__(self, directory: Path) -> None:
        self._jobs = directory / _JOBS
        self._unreadable = directory / _UNREADABLE
        self._writing = threading.Lock()
        try:
            for place in (directory, self._jobs):  # `mode` does not hold for parents
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            _close_to_others(directory)
            self._lock = open(directory / _LOCK, "ab", opener=_private)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise JobsUnavailable(f"STATE_DIR cannot be used ({error.strerror}).") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            if isinstance(error, BlockingIOError):
                raise JobsUnavailable("Another server uses the same STATE_DIR.") from None
            raise JobsUnavailable(f"STATE_DIR cannot be used ({error.strerror}).") from None

    def close(self) -> None:
        """Unlock the directory for another server."""
        self._lock.close()

    def records(self) -> list[JobRecord]:
        """Every job, oldest first. Nothing is deleted: incomplete and damaged jobs are moved to `unreadable-jobs`. What
        is no job, is of a newer version, or cannot be read for a disk error, stays where it is.

        Raises `JobsUnavailable`.
        """
        found = []
        for folder in self._folders():
            try:
                found.append(_read(folder))
            except migration.NewerVersion:
                logger.warning("job is of a newer version of the server and waits for it", id=folder.name)
            except _DAMAGED as error:
                self._move_aside(folder, type(error).__name__)
            except OSError as error:
                logger.warning("job cannot be read now", id=folder.name, reason=error.strerror)
        return sorted(found, key=lambda record: record.created_at)

    def add(self, record: JobRecord, recording: BinaryIO) -> None:
        """Store a new job. The record is written last: a folder without one is incomplete."""
        folder = self._jobs / record.id
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _not_stored(error) from error
        try:
            recording.seek(0)
            with (folder / _RECORDING).open("wb") as sink:
                shutil.copyfileobj(recording, sink, 1024 * 1024)
            for name, clip in zip(_CLIPS, clips(record.request), strict=False):
                (folder / name).write_bytes(clip)
            self.update(record)
        except OSError as error:
            with suppress(JobsUnavailable):
                self.remove(record.id)
            raise _not_stored(error) from error

    def update(self, record: JobRecord) -> None:
        """Store a changed record."""
        self._write(record.id, _RECORD, stored_record.dumped(record))

    def end(self, record: JobRecord, result: bytes | None) -> None:
        """Store how a job ended, with its result if it has one that is not stored yet, and remove its audio."""
        try:
            self._write_end(record, result)
        except OSError:
            self._remove_audio(record.id)  # it is not needed any more, and there may be space without it
            self._write_end(record, result)
        self._remove_audio(record.id)

    def recording(self, identity: str) -> BinaryIO:
        """The uploaded file, open for reading."""
        return (self._jobs / identity / _RECORDING).open("rb")

    def request(self, record: JobRecord) -> JobRequest:
        """The request of a job that is not over, with its clips."""
        count, folder = len(clips(record.request)), self._jobs / record.id
        return with_clips(record.request, [(folder / name).read_bytes() for name in _CLIPS[:count]])

    def spoken_parts(self, identity: str) -> SpokenParts:
        """What is spoken already of a job that speaks."""
        folder = self._jobs / identity
        return SpokenParts((folder / _SPEECH).open("a+b"), (folder / _SPOKEN_PARTS).open("a+b"))

    def new_result(self, identity: str) -> BinaryIO:
        """An empty file for a result that is too large for memory. The caller closes it."""
        return (self._jobs / identity / _NEW_RESULT).open("w+b")

    def keep_result(self, identity: str, written: BinaryIO) -> None:
        """The file of `new_result` is complete: it is the result."""
        written.flush()
        os.fsync(written.fileno())
        (self._jobs / identity / _NEW_RESULT).replace(self._jobs / identity / _RESULT)

    async def keep_parts(self, identity: str, spoken: SpokenParts) -> None:
        """They are on the disk already."""

    def result(self, identity: str) -> BinaryIO:
        """The result of a job that succeeded, open for reading."""
        return (self._jobs / identity / _RESULT).open("rb")

    def size_bytes(self, identity: str) -> int:
        """What a job takes on the disk."""
        size = _FOLDER_BYTES
        for name in _FILES:
            with suppress(OSError):
                size += (self._jobs / identity / name).stat().st_blocks * 512
        return size

    def free_bytes(self) -> int:
        """What the disk has left."""
        return shutil.disk_usage(self._jobs).free

    def remove(self, identity: str) -> None:
        """Remove all files of a job. A write at the same time ends before, or fails. Raises `JobsUnavailable`."""
        folder = self._jobs / identity
        try:
            with self._writing:
                for name in _FILES:
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # something of somebody else
                raise JobsUnavailable(f"The job cannot be removed ({error.strerror}).") from error

    def _folders(self) -> Iterator[Path]:
        try:
            with os.scandir(self._jobs) as entries:
                found = [entry.name for entry in entries if is_id(entry.name) and entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise JobsUnavailable(f"STATE_DIR cannot be read ({error.strerror}).") from None
        return (self._jobs / name for name in found)

    def _move_aside(self, folder: Path, reason: str) -> None:
        place = self._unreadable / folder.name
        try:
            self._unreadable.mkdir(mode=0o700, exist_ok=True)
            folder.rename(place)
        except OSError as error:
            logger.warning("job is unreadable", id=folder.name, reason=reason, not_moved=error.strerror)
        else:
            logger.warning("job is unreadable and was moved", id=folder.name, reason=reason, place=str(place))

    def _remove_audio(self, identity: str) -> None:
        for name in (_RECORDING, *_CLIPS, _SPEECH, _SPOKEN_PARTS, _NEW_RESULT):
            (self._jobs / identity / name).unlink(missing_ok=True)

    def _write_end(self, record: JobRecord, result: bytes | None) -> None:
        if result is not None:
            self._write(record.id, _RESULT, result)
        self.update(record)

    def _write(self, identity: str, name: str, content: bytes) -> None:
        path = self._jobs / identity / name
        part = path.with_suffix(".part")
        with self._writing:
            try:
                with part.open("wb") as sink:
                    sink.write(content)
                    sink.flush()
                    os.fsync(sink.fileno())
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)


def _read(folder: Path) -> JobRecord:
    """Raises `NewerVersion`, `OSError` and what a damaged record raises."""
    return stored_record.loaded((folder / _RECORD).read_bytes(), folder.name)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _close_to_others(directory: Path) -> None:
    """Take away what earlier versions let other users do. A directory that has things of others in it stays open."""
    with suppress(PermissionError):  # a volume of somebody else
        if {path.name for path in directory.iterdir()} <= _CONTENT:
            directory.chmod(directory.stat().st_mode & 0o700)


def _not_stored(error: OSError) -> JobsUnavailable:
    return JobsUnavailable(f"The recording cannot be stored ({error.strerror}).")
