"""The store of jobs of one server: folders on its disk, and in memory their records, which change as the jobs go on."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from io import SEEK_END
from itertools import repeat
from typing import BinaryIO, ClassVar

from loguru import logger

from asr_server.core.errors import JobNotFound, JobsUnavailable
from asr_server.jobs.folders import JobFolders
from asr_server.jobs.record import JobRecord, JobState, with_clips
from asr_server.jobs.shares import AT_ONCE_EACH, JobLimits, WaitingJobs
from asr_server.jobs.store import Claim, Content, JobFiles

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
        self._waiting = WaitingJobs(AT_ONCE_EACH)
        self._opening: asyncio.Task[None] | None = None
        # Jobs whose recordings are being stored, and the bytes of these, by owner.
        self._arriving: Counter[str] = Counter()
        self._arriving_bytes: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[JobState, int]:
        """Count the jobs in each state."""
        return Counter(record.state for record in self._records.values())

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
        record = replace(self._records[identity], state=JobState.RUNNING, started_at=time.time())
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
            self._waiting.put(claim.record.owner, claim.id)

    @asynccontextmanager
    async def files(self, claim: Claim) -> AsyncIterator[JobFiles]:
        """Hold the files of a claimed job, which are those of its folder."""
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
        return ended

    async def remove(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> bool:
        """Remove the owner's job. It is there again if its files cannot be removed."""
        if (record := await self.get(identity, owner)) is None:
            return False
        del self._records[identity]
        size_bytes = self._bytes.pop(identity)
        self._removed_at_s.pop(identity, None)
        self._waiting.remove(owner, identity)
        self._changed.pop(identity).set()
        await stop()  # or it would write new files
        try:
            await asyncio.to_thread(self._opened().remove, identity)
        except JobsUnavailable:
            self._put(record if record.state.over else record.queued_again(), size_bytes)
            raise
        return True

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
        else:
            self._waiting.put(record.owner, record.id)

    def _remove_later(self, record: JobRecord) -> None:
        """Set the time of its removal, which is at most `ttl_s` ahead, whatever the clock says."""
        left_s = (record.expires_at or record.ended_at + self._limits.ttl_s) - time.time()
        self._removed_at_s[record.id] = time.monotonic() + min(max(left_s, 0.0), self._limits.ttl_s)

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
        """Close the file."""
        self._file.close()


async def _nothing_runs() -> None:
    """A job that is over has no run to stop."""
