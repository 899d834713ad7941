"""The store of jobs of one server: folders on its disk, and in memory their records, which change as the jobs go on.

A folder has the recording, the clips of known speakers, the record and the result; or a text and the speech that is
made of it. Each file is written under another name and then renamed, so that a server that dies at any point leaves
whole files. The directory may hold things of others: only folders with the name of a job are read, and only files of a
job removed.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from io import SEEK_END
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, ClassVar

from loguru import logger

from asr_server.core.errors import JobNotFound, JobsUnavailable
from asr_server.jobs.record import (
    DAMAGED,
    JobRecord,
    JobRequest,
    NewerVersion,
    RecordFormat,
    RecordState,
    clips,
    is_id,
    with_clips,
)
from asr_server.jobs.store import AT_ONCE_EACH, Claim, ClaimLost, Content, JobFiles, JobLimits, JobParts, WaitingJobs
from asr_server.recordings.requests import MAX_KNOWN_SPEAKERS

# The recording of a job that speaks is its text.
_RECORD, _RECORDING, _RESULT = "job.json", "recording", "result"
_NEW_RESULT, _SPEECH, _SPOKEN_PARTS = "result.part", "speech", "spoken-parts"
_TRANSCRIPT, _NEW_TRANSCRIPT = "transcript", "transcript.part"
_CLIPS = tuple(f"clip-{number}" for number in range(MAX_KNOWN_SPEAKERS))
# In the order in which they are removed: a job that is removed in part must not look as if it had never been accepted.
_MADE = (_TRANSCRIPT, _NEW_TRANSCRIPT, _RESULT, _NEW_RESULT)
_FILES = (_RECORDING, *_CLIPS, _SPEECH, _SPOKEN_PARTS, *_MADE, "job.part", _RECORD)
_JOBS, _UNREADABLE, _LOCK = "jobs", "unreadable-jobs", "lock"
_FOLDER_BYTES = 4096
_DAMAGED = (FileNotFoundError, *DAMAGED)


class JobFolders:
    """The jobs under one directory, which belongs to one server at a time.

    `others`: what else servers put into the directory. Raises `JobsUnavailable` when it cannot be written, or another
    server has it.
    """

    def __init__(self, directory: Path, records: RecordFormat, others: Collection[str] = ()) -> None:
        self._format = records
        self._jobs = directory / _JOBS
        self._unreadable = directory / _UNREADABLE
        self._writing = threading.Lock()
        try:
            for place in (directory, self._jobs):  # `mode` does not hold for parents
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
            _close_to_others(directory, {_JOBS, _UNREADABLE, _LOCK, *others})
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
        self._lock.close()

    def records(self) -> list[JobRecord]:
        """Every job, oldest first. Nothing is deleted: incomplete and damaged jobs are moved to `unreadable-jobs`. What
        is no job, is of a newer version, or cannot be read for a disk error, stays where it is.

        Raises `JobsUnavailable`.
        """
        found = []
        for folder in self._folders():
            try:
                found.append(self._read(folder))
            except NewerVersion:
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
        self._write(record.id, _RECORD, self._format.dumped(record))

    def end(self, record: JobRecord, result: bytes | None) -> None:
        """Store how a job ended, with its result if it has one that is not stored yet, and remove its audio."""
        try:
            self._write_end(record, result)
        except OSError:
            self._remove_audio(record.id)  # it is not needed any more, and there may be space without it
            self._write_end(record, result)
        self._remove_audio(record.id)

    def recording(self, identity: str) -> BinaryIO:
        return (self._jobs / identity / _RECORDING).open("rb")

    def request(self, record: JobRecord) -> JobRequest:
        """The request of a job that is not over, with its clips."""
        count, folder = len(clips(record.request)), self._jobs / record.id
        return with_clips(record.request, [(folder / name).read_bytes() for name in _CLIPS[:count]])

    def parts(self, identity: str) -> JobParts:
        """Open the finished parts of a job whose result is made in parts."""
        folder = self._jobs / identity
        return JobParts((folder / _SPEECH).open("a+b"), (folder / _SPOKEN_PARTS).open("a+b"))

    def new_result(self, identity: str) -> BinaryIO:
        return (self._jobs / identity / _NEW_RESULT).open("w+b")

    def keep_result(self, identity: str, written: BinaryIO) -> None:
        """The file of `new_result` is complete: it is the result."""
        written.flush()
        os.fsync(written.fileno())
        (self._jobs / identity / _NEW_RESULT).replace(self._jobs / identity / _RESULT)

    def keep_transcript(self, identity: str, stored: bytes) -> None:
        self._write(identity, _TRANSCRIPT, stored)

    async def keep_parts(self, identity: str, spoken: JobParts) -> None:
        """They are on the disk already."""

    def result(self, identity: str) -> BinaryIO:
        return (self._jobs / identity / _RESULT).open("rb")

    def transcript(self, identity: str) -> bytes:
        """Return what a result was made of, b"" for nothing."""
        try:
            return (self._jobs / identity / _TRANSCRIPT).read_bytes()
        except FileNotFoundError:
            return b""

    def size_bytes(self, identity: str) -> int:
        """Return the bytes that a job takes on the disk."""
        size = _FOLDER_BYTES
        for name in _FILES:
            with suppress(OSError):
                size += (self._jobs / identity / name).stat().st_blocks * 512
        return size

    def free_bytes(self) -> int:
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

    def _read(self, folder: Path) -> JobRecord:
        """Raises `NewerVersion`, `OSError` and what a damaged record raises."""
        return self._format.loaded((folder / _RECORD).read_bytes(), folder.name)

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
        elif record.result is None:
            (self._jobs / record.id / _TRANSCRIPT).unlink(missing_ok=True)
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _close_to_others(directory: Path, content: set[str]) -> None:
    """Take away what earlier versions let other users do. A directory that has things of others in it stays open."""
    with suppress(PermissionError):  # a volume of somebody else
        if {path.name for path in directory.iterdir()} <= content:
            directory.chmod(directory.stat().st_mode & 0o700)


def _not_stored(error: OSError) -> JobsUnavailable:
    return JobsUnavailable(f"The recording cannot be stored ({error.strerror}).")


# Where STATE_DIR cannot be used, it is tried again: another server may end, and a disk may get space.
_OPEN_AGAIN_S = 10.0
# For results whose time passed before this start: they are kept once more, since the clock may have been wrong.
_GRACE_S = 3_600.0
_PIECE_BYTES = 256 * 1024


class DiskStore:
    """A `JobStore` over folders, which are this server's alone, so that no claim is ever lost.

    A job is stored when it is accepted and when it is over; in between its record changes in memory, and the next
    server runs it from its beginning. Files are read and written in threads.
    """

    is_shared: ClassVar[bool] = False

    def __init__(self, limits: JobLimits, open_folders: Callable[[], JobFolders]) -> None:
        self._limits = limits
        self._open_folders = open_folders  # raises `JobsUnavailable` where there can be no jobs now
        self._folders_or_reason: JobFolders | str = "The server is starting."
        self._records: dict[str, JobRecord] = {}
        self._bytes: dict[str, int] = {}  # on the disk
        self._removed_at_s: dict[str, float] = {}  # monotonic, of finished jobs: nobody can set that clock
        self._changed: dict[str, asyncio.Event] = {}
        self._follow_ups: dict[str, float] = {}  # when each is due, without those under way
        self._waiting = WaitingJobs(AT_ONCE_EACH)
        self._opening: asyncio.Task[None] | None = None
        # Jobs whose recordings are being stored, and the bytes of these, by owner.
        self._arriving: Counter[str] = Counter()
        self._arriving_bytes: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[RecordState, int]:
        return Counter(record.state for record in self._records.values())

    @property
    def waiting_follow_ups(self) -> int:
        return len(self._follow_ups)

    async def start(self) -> None:
        """Read the jobs of an earlier server, at once or as soon as the directory can be used."""
        if not await self._open():
            self._opening = asyncio.create_task(self._open_later())

    async def close(self) -> None:
        """Leave the directory to the next server."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if isinstance(self._folders_or_reason, JobFolders):
            self._folders_or_reason.close()

    def wake(self) -> None:
        """Make all `changes` yield once more."""
        for changed in self._changed.values():
            changed.set()

    async def unfinished(self) -> Counter[str]:
        """Count the jobs that arrive, wait or run, by owner."""
        self._opened()
        return Counter(record.owner for record in self._records.values() if not record.state.over) + self._arriving

    async def add(self, record: JobRecord, recording: BinaryIO, size_bytes: int) -> None:
        """Store a new job, if its owner may have another one and the disk has room for it."""
        folders, owner = self._opened(), record.owner
        self._limits.check_jobs(await self.unfinished(), owner)
        self._arriving[owner] += 1
        self._arriving_bytes[owner] += size_bytes
        try:
            free_bytes = await asyncio.to_thread(folders.free_bytes)
            free_bytes -= sum(other.expected_bytes for other in self._records.values() if not other.state.over)
            if record.expected_bytes and self._arriving_bytes.total() > free_bytes:
                needed_mib = record.expected_bytes // 2**20
                raise JobsUnavailable(f"The speech may take {needed_mib} MiB of the disk, which has less.")
            kept_bytes = sum(self._bytes[other.id] for other in self._records.values() if other.owner == owner)
            arriving_bytes = self._arriving_bytes
            self._limits.check_bytes(kept_bytes + arriving_bytes[owner], free_bytes - arriving_bytes.total(), owner)
            await asyncio.to_thread(folders.add, record, recording)
            stored_bytes = await asyncio.to_thread(folders.size_bytes, record.id)
        finally:
            self._arriving[owner] -= 1
            self._arriving_bytes[owner] -= size_bytes
        self._put(replace(record, request=with_clips(record.request, repeat(b""))), stored_bytes)

    async def get(self, identity: str, owner: str) -> JobRecord | None:
        """Return the record of the owner's job, None if there is none."""
        record = self._records.get(identity)
        return None if record is None or record.owner != owner else record

    async def content(self, identity: str) -> Content:
        """Return the content of a job's result. Raises `JobNotFound`."""
        try:
            return _FileContent(await asyncio.to_thread(self._opened().result, identity))
        except FileNotFoundError:
            raise JobNotFound("The job was removed.", param="job_id") from None
        except OSError as error:
            raise JobsUnavailable(f"The result cannot be read ({error.strerror}).") from error

    async def transcript(self, identity: str) -> bytes:
        """Return what a job's result was made of, b"" for nothing."""
        try:
            return await asyncio.to_thread(self._opened().transcript, identity)
        except OSError as error:
            raise JobsUnavailable(f"The transcript cannot be read ({error.strerror}).") from error

    async def changes(self, record: JobRecord) -> AsyncGenerator[JobRecord, None]:
        """Yield the job's record, and again at every change, until the job is removed."""
        while (found := self._records.get(record.id)) is not None:
            changed = self._changed[record.id]
            yield found
            await changed.wait()

    async def claim(self, running: Collection[JobRecord]) -> Claim | None:
        """Take the job whose turn it is."""
        identity = self._waiting.next(Counter(record.owner for record in running))
        if identity is None:
            return None
        record = replace(self._records[identity], state=RecordState.RUNNING, started_at=time.time())
        self._publish(record)
        return Claim(record, 0)

    async def renew(self, claim: Claim) -> None:
        """Publish the record, unless the job has ended or was removed meanwhile."""
        if claim.id in self._records and not self._records[claim.id].state.over:
            self._publish(claim.record)

    async def release(self, claim: Claim, *, lost: bool) -> None:
        """Let the job wait again, behind the others of its owner."""
        if claim.id in self._records and not self._records[claim.id].state.over:
            self._publish(claim.record.queued_again())
            self._waiting.put(claim.record)

    @asynccontextmanager
    async def files(self, claim: Claim) -> AsyncIterator[JobFiles]:
        yield self._opened()

    async def end(self, claim: Claim, files: JobFiles | None, ended: JobRecord, content: bytes | None) -> JobRecord:
        """Store how the job ended. Where its result has no room, it failed for good."""
        folders = self._opened()
        try:
            await asyncio.to_thread(folders.end, ended, content)
        except OSError as error:
            ended = ended.failed(JobsUnavailable(f"The result cannot be stored ({error.strerror})."))
            with suppress(OSError):
                await asyncio.to_thread(folders.end, ended, None)
        size_bytes = await asyncio.to_thread(folders.size_bytes, ended.id)
        if ended.id in self._records:
            self._bytes[ended.id] = size_bytes
            self._removed_at_s[ended.id] = time.monotonic() + self._limits.ttl_s
            self._publish(ended)
            self._follow_up_later(ended)
        return ended

    async def remove(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> bool:
        """Remove the owner's job. It is there again if its files cannot be removed."""
        if (record := await self.get(identity, owner)) is None:
            return False
        del self._records[identity]
        size_bytes = self._bytes.pop(identity)
        self._removed_at_s.pop(identity, None)
        self._follow_ups.pop(identity, None)
        self._waiting.remove(owner, identity)
        self._changed.pop(identity).set()
        await stop()  # or it would write new files
        try:
            await asyncio.to_thread(self._opened().remove, identity)
        except JobsUnavailable:
            self._put(record if record.state.over else record.queued_again(), size_bytes)
            raise
        return True

    async def cancel(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> JobRecord | None:
        """End the owner's job without a result, if it is not over."""
        if (record := await self.get(identity, owner)) is None or record.state.over:
            return record
        self._opened()
        self._waiting.remove(owner, identity)
        await stop()
        if (record := self._records.get(identity)) is None or record.state.over:  # it ended before it was stopped
            return record
        ended = record.cancelled().ended(time.time())
        return await self.end(Claim(ended, 0), None, ended, None)

    async def claim_follow_up(self, busy: Collection[str]) -> Claim | None:
        """Take an ended job whose next request is due."""
        now = time.time()
        due = [(at, one) for one, at in self._follow_ups.items() if at <= now and self._records[one].owner not in busy]
        if not due:
            return None
        _, identity = min(due)
        del self._follow_ups[identity]
        return Claim(self._records[identity], 0)

    async def keep_follow_up(self, claim: Claim, record: JobRecord) -> None:
        """Store the record. Where it cannot be written the next server sends the request once more."""
        if claim.id not in self._records:
            raise ClaimLost
        with suppress(OSError):
            await asyncio.to_thread(self._opened().update, record)
        if claim.id in self._records:
            self._publish(record)
            self._follow_up_later(record)

    async def expire(self) -> None:
        """Remove finished jobs after their time."""
        now_s = time.monotonic()
        for identity in [identity for identity, at_s in self._removed_at_s.items() if at_s <= now_s]:
            if (record := self._records.get(identity)) is not None:
                with suppress(JobsUnavailable):
                    await self.remove(identity, record.owner, _nothing_runs)

    def _opened(self) -> JobFolders:
        if isinstance(self._folders_or_reason, str):
            raise JobsUnavailable(self._folders_or_reason)
        return self._folders_or_reason

    async def _open(self) -> bool:
        """Read all jobs. False if there are none for now."""
        try:
            folders, records = await asyncio.to_thread(self._load)
        except JobsUnavailable as reason:
            if reason.message != self._folders_or_reason:
                logger.warning("jobs are off", reason=reason.message)
            self._folders_or_reason = reason.message
            return False
        self._folders_or_reason = folders
        for record in records:
            kept = await asyncio.to_thread(self._kept, record) if record.state.over else record.queued_again()
            self._put(kept, await asyncio.to_thread(folders.size_bytes, record.id))
        return True

    async def _open_later(self) -> None:
        opened = False
        while not opened:
            await asyncio.sleep(_OPEN_AGAIN_S)
            opened = await self._open()
        logger.info("jobs are on")

    def _load(self) -> tuple[JobFolders, list[JobRecord]]:
        folders = self._open_folders()
        try:
            return folders, folders.records()
        except JobsUnavailable:
            folders.close()
            raise

    def _kept(self, record: JobRecord) -> JobRecord:
        """Return the job of an earlier server, which says when it is removed where its end does not."""
        age_s, ttl_s = time.time() - record.ended_at, self._limits.ttl_s
        if record.expires_at or 0 <= age_s < ttl_s:
            return record
        kept = replace(record, expires_at=time.time() + (min(_GRACE_S, ttl_s) if age_s > 0 else ttl_s))
        with suppress(OSError):
            self._opened().update(kept)
        return kept

    def _put(self, record: JobRecord, size_bytes: int) -> None:
        self._records[record.id] = record
        self._bytes[record.id] = size_bytes if record.state.over else max(size_bytes, record.expected_bytes)
        self._changed[record.id] = asyncio.Event()
        if record.state.over:
            self._remove_later(record)
            self._follow_up_later(record)
        else:
            self._waiting.put(record)

    def _remove_later(self, record: JobRecord) -> None:
        """Set the time of its removal, which is at most `ttl_s` ahead, whatever the clock says."""
        left_s = (record.expires_at or record.ended_at + self._limits.ttl_s) - time.time()
        self._removed_at_s[record.id] = time.monotonic() + min(max(left_s, 0.0), self._limits.ttl_s)

    def _follow_up_later(self, record: JobRecord) -> None:
        if record.follow_up_at:
            self._follow_ups[record.id] = record.follow_up_at

    def _publish(self, record: JobRecord) -> None:
        self._records[record.id] = record
        self._changed[record.id].set()
        self._changed[record.id] = asyncio.Event()


class _FileContent:
    """The content of an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = file.seek(0, SEEK_END)
        file.seek(0)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the file."""
        while piece := await asyncio.to_thread(self._file.read, _PIECE_BYTES):
            yield piece

    def close(self) -> None:
        self._file.close()


async def _nothing_runs() -> None:
    """A job that is over has no run to stop."""
