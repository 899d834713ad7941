"""The store of jobs of several servers with one database: each runs those whose turn it is, and answers for all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, ClassVar

from asr_server.core.errors import JobsUnavailable
from asr_server.features.shared_jobs.database_store import RECORDING, RESULT, TRANSCRIPT, DatabaseStore, Shares
from asr_server.features.shared_jobs.running_files import RunningFiles, clip_file
from asr_server.jobs.record import JobRecord, RecordState, clips
from asr_server.jobs.runner import when_answered
from asr_server.jobs.store import Claim, ClaimLost, Content, JobFiles, JobLimits

_PAUSE_S = 1.0
_LEAST_PAUSE_S = 0.05

ReadRecords = Callable[[Collection[str]], Awaitable[dict[str, JobRecord]]]


class RecordFeed:
    """One read for all watchers, at most every second, and sooner after `wake`. Used from the event loop."""

    def __init__(self, read: ReadRecords) -> None:
        self._read = read
        self._watched: Counter[str] = Counter()
        self._records: dict[str, JobRecord] = {}
        self._read_again = asyncio.Event()
        self._was_read = asyncio.Event()

    def wake(self) -> None:
        """Read again soon: a job changed here, or watchers have to check something other than records."""
        self._read_again.set()
        self._was_read.set()
        self._was_read = asyncio.Event()

    async def changes(self, record: JobRecord) -> AsyncGenerator[JobRecord, None]:
        """Yield the record, and again when records were read or `wake` was called, until it is removed."""
        self._watched[record.id] += 1
        self._records.setdefault(record.id, record)  # what is there was read later
        self._read_again.set()
        try:
            while (found := self._records.get(record.id)) is not None:
                was_read = self._was_read
                yield found
                await was_read.wait()
        finally:
            self._watched[record.id] -= 1
            if not self._watched[record.id]:
                del self._watched[record.id]
                self._records.pop(record.id, None)

    async def run(self) -> None:
        """Read the records. Runs for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):  # `wait_for` may forget that it is cancelled
                    await self._read_again.wait()
            self._read_again.clear()
            if watched := list(self._watched):
                with suppress(JobsUnavailable):  # watchers wait for its return
                    found = await self._read(watched)
                    for identity in watched:
                        if identity in found:
                            self._records[identity] = found[identity]
                        else:
                            self._records.pop(identity, None)
                    self._was_read.set()
                    self._was_read = asyncio.Event()
            await asyncio.sleep(_LEAST_PAUSE_S)


LEASE_S = 20.0
_COUNT_S = 5.0


class SharedStore:
    """A `JobStore` over the rows of a database."""

    is_shared: ClassVar[bool] = True
    waiting_follow_ups: ClassVar[int] = 0  # a gateway without a worker starts one for them (`database.work_waits`)

    def __init__(self, rows: DatabaseStore, limits: JobLimits, directory: Path) -> None:
        self.rows = rows
        self._limits = limits  # of all servers together
        self._directory = directory  # has space for the files of the jobs that run here
        self._counts: Counter[RecordState] = Counter()
        self._feed = RecordFeed(rows.records)
        self._tasks: list[asyncio.Task[None]] = []
        # Statements and the feed are these methods as they stand.
        self.get, self.release, self.expire = rows.get, rows.release, rows.sweep
        self.claim_follow_up, self.keep_follow_up = rows.claim_follow_up, rows.keep_follow_up
        self.changes, self.wake = self._feed.changes, self._feed.wake

    @property
    def counts(self) -> Mapping[RecordState, int]:
        """The jobs of all servers, as they were counted last."""
        return self._counts

    async def start(self) -> None:
        """Begin to read what changes. Where the database does not answer it is asked again."""
        with suppress(OSError, RuntimeError):  # the jobs that run will say so; RuntimeError: there is no home directory
            self._directory = self._directory.expanduser()
            await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True, mode=0o700)
        self._tasks += [asyncio.create_task(one) for one in (self._feed.run(), self._count())]

    async def close(self) -> None:
        """End the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.rows.database.close()

    async def unfinished(self) -> Counter[str]:
        """Count the jobs of all servers that arrive, wait or run, by owner."""
        return (await self.rows.shares()).unfinished

    async def add(self, record: JobRecord, recording: BinaryIO, size_bytes: int) -> None:
        """Store a new job, if there is room for it among those of all servers."""
        claim = await self.rows.add(record, size_bytes, partial(self._check, record.owner, size_bytes))
        try:
            await self.rows.write(claim, RECORDING, recording)
            for number, clip in enumerate(clips(record.request)):
                await self.rows.write(claim, clip_file(number), BytesIO(clip))
            await self.rows.accept(claim)
        except BaseException as error:
            with suppress(JobsUnavailable):  # then the place is given up with its lease
                await self.rows.remove(record.id, record.owner)
            if isinstance(error, ClaimLost):
                raise JobsUnavailable("The database of jobs was too slow for the recording.") from None
            raise
        self._counts[RecordState.QUEUED] += 1

    async def content(self, identity: str) -> Content:
        """Return the content of a job's result."""
        return _StoredContent(self.rows, identity, await self.rows.size_bytes(identity, RESULT))

    async def transcript(self, identity: str) -> bytes:
        """Return what a job's result was made of, b"" for nothing."""
        return b"".join([chunk async for chunk in self.rows.read(identity, TRANSCRIPT)])

    async def claim(self, running: Collection[JobRecord]) -> Claim | None:
        """Take the job whose turn it is among those of all servers."""
        # After an outage the servers that still run jobs have first to renew their claims.
        take_over = self.rows.database.steady_s > LEASE_S
        claim = await self.rows.claim(running, time.time(), take_over=take_over)
        if claim is not None:
            self._feed.wake()
        return claim

    async def renew(self, claim: Claim) -> None:
        """Keep the claim for another lease, and publish its record."""
        await self.rows.renew(claim)
        self._feed.wake()

    @asynccontextmanager
    async def files(self, claim: Claim) -> AsyncIterator[JobFiles]:
        """Hold copies of the job's files. Raises `OSError`."""
        opening = asyncio.create_task(asyncio.to_thread(RunningFiles, self.rows, claim, self._directory))
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread goes on, and the files that it opens have to be closed
            with suppress(OSError), await opening:
                pass
            raise
        with opened as files:
            await when_answered(files.fetch)
            yield files

    async def end(self, claim: Claim, files: JobFiles | None, ended: JobRecord, content: bytes | None) -> JobRecord:
        """Store how the job ended, with its result."""
        if ended.result is not None:
            assert isinstance(files, RunningFiles)
            await files.store_result(content)
        await self.rows.end(claim, ended, self._limits.ttl_s)
        self._feed.wake()
        return ended

    async def remove(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> bool:
        """Remove the owner's job with its files. A server elsewhere that runs it learns so when it renews its claim."""
        removed = await self.rows.remove(identity, owner)
        if removed:
            await stop()
            self._feed.wake()
        return removed

    async def cancel(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> JobRecord | None:
        """End the owner's job without a result. A server elsewhere that runs it learns so when it renews its claim."""
        claim = await self.rows.cancel(identity, owner)
        if claim is None:
            return await self.rows.get(identity, owner)
        await stop()
        return await self.end(claim, None, claim.record.cancelled().ended(time.time()), None)

    def _check(self, owner: str, size_bytes: int, shares: Shares) -> None:
        self._limits.check_jobs(shares.unfinished, owner)
        free_bytes = self._limits.max_bytes - shares.size_bytes.total() - size_bytes
        self._limits.check_bytes(shares.size_bytes[owner] + size_bytes, free_bytes, owner)
        if free_bytes < 0:
            limit_mib = self._limits.max_bytes // 2**20
            raise JobsUnavailable(f"All jobs may take {limit_mib} MiB of the database (JOBS_DATABASE_MB).")

    async def _count(self) -> None:
        while True:
            with suppress(JobsUnavailable):
                self._counts = await self.rows.counts()
            await asyncio.sleep(_COUNT_S)


@dataclass(frozen=True, slots=True)
class _StoredContent:
    """A result in the database. No connection is kept while its reader waits."""

    store: DatabaseStore
    identity: str
    size_bytes: int

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the content in chunks."""
        return self.store.read(self.identity, RESULT)

    def close(self) -> None:
        """Nothing is open."""
