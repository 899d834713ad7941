"""Jobs on disk: a folder for each, with the recording, the record and the result.

Each file is written under another name and then renamed, so that a server that dies at any point leaves whole files.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from loguru import logger
from pydantic import TypeAdapter, ValidationError

from asr_server.core.errors import JobsUnavailable
from asr_server.service.jobs.record import JobRecord

_JOB = re.compile(r"job_[\w-]+")
_RECORD, _RECORDING, _RESULT = "job.json", "recording", "result"


@dataclass(frozen=True, slots=True)
class _StoredRecord:
    """The content of a record's file. The version changes whenever records of before would be misread."""

    version: Literal[2]
    record: JobRecord


_stored_records = TypeAdapter(_StoredRecord)


class JobStore:
    """The jobs under one directory, which belongs to one server at a time.

    Raises `JobsUnavailable` when it cannot be written, or another server has it.
    """

    def __init__(self, directory: Path) -> None:
        self._jobs = directory / "jobs"
        self._unreadable = directory / "unreadable-jobs"
        self._writing = threading.Lock()
        try:
            for place in (directory, self._jobs):  # `mode` does not hold for parents
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (directory / "lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise JobsUnavailable("Another server uses the same STATE_DIR.") from None
        except OSError as error:
            raise JobsUnavailable(f"STATE_DIR cannot be used ({error.strerror}).") from None

    def close(self) -> None:
        """Unlock the directory for another server."""
        self._lock.close()

    def records(self) -> list[JobRecord]:
        """Every job, oldest first. Nothing is deleted: incomplete jobs and those of another version are moved to
        `unreadable-jobs`, and what is no job, or cannot be read for a disk error, stays where it is.
        """
        found = []
        for folder in self._jobs.iterdir():
            if not _JOB.fullmatch(folder.name):
                continue
            try:
                found.append(_stored_records.validate_json((folder / _RECORD).read_bytes()).record)
            except (FileNotFoundError, NotADirectoryError, ValidationError) as error:
                self._move_aside(folder, type(error).__name__)
            except OSError as error:
                logger.warning("job cannot be read now", id=folder.name, reason=error.strerror)
        return sorted(found, key=lambda record: record.created_at)

    def add(self, record: JobRecord, recording: BinaryIO) -> None:
        """Store a new job. The record is written last: a folder without one is incomplete."""
        folder = self._jobs / record.id
        try:
            folder.mkdir(mode=0o700)
            recording.seek(0)
            with (folder / _RECORDING).open("wb") as sink:
                shutil.copyfileobj(recording, sink, 1024 * 1024)
            self.update(record)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise JobsUnavailable(f"The recording cannot be stored ({error.strerror}).") from error

    def update(self, record: JobRecord) -> None:
        """Store a changed record."""
        self._write(record.id, _RECORD, _stored_records.dump_json(_StoredRecord(2, record)))

    def finish(self, record: JobRecord, result: bytes) -> None:
        """Store a job's result and remove its recording."""
        self._write(record.id, _RESULT, result)
        self.update(record)
        self.remove_recording(record.id)

    def remove_recording(self, identity: str) -> None:
        """Remove the uploaded file."""
        (self._jobs / identity / _RECORDING).unlink(missing_ok=True)

    def recording(self, identity: str) -> BinaryIO:
        """The uploaded file, open for reading."""
        return (self._jobs / identity / _RECORDING).open("rb")

    def result(self, identity: str) -> bytes:
        """The result of a job that succeeded."""
        return (self._jobs / identity / _RESULT).read_bytes()

    def remove(self, identity: str) -> None:
        """Remove all files of a job. A write at the same time ends before, or fails."""
        with self._writing:
            shutil.rmtree(self._jobs / identity, ignore_errors=True)

    def _move_aside(self, folder: Path, reason: str) -> None:
        place = self._unreadable / folder.name
        try:
            self._unreadable.mkdir(mode=0o700, exist_ok=True)
            folder.rename(place)
        except OSError as error:
            logger.warning("job is unreadable", id=folder.name, reason=reason, not_moved=error.strerror)
        else:
            logger.warning("job is unreadable and was moved", id=folder.name, reason=reason, place=str(place))

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
