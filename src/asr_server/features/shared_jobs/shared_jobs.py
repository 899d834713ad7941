"""Jobs of several servers with one database: each runs those whose turn it is, and answers for all.

`runner.py` has the jobs of one server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, TypeVar

from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, JobNotFinished, JobsUnavailable, ShuttingDown
from asr_server.features.shared_jobs.database_store import RECORDING, RESULT, Claim, ClaimLost, DatabaseStore, Shares
from asr_server.features.shared_jobs.running_files import RunningFiles, clip_file
from asr_server.jobs.base import JobRunner
from asr_server.jobs.content import Content
from asr_server.jobs.record import JobRecord, JobRequest, JobState, clips, with_clips
from asr_server.jobs.record_feed import RecordFeed
from asr_server.jobs.shares import AT_ONCE, JobLimits
from asr_server.jobs.work import JobKinds, JobRun, Progress, TextSize, new_job, not_found
from asr_server.recordings.requests import Result

LEASE_S = 20.0
# A claim is renewed after this long, and sooner when its job went on.
_RENEW_S, _REPORT_S = 5.0, 1.0
# Between two looks for a job, where no event of this server says that there is one.
_LOOK_S = 1.0
_RETRY_S = 1.0
_SWEEP_S = 60.0
_RELEASE_S = 5.0
# What so many servers did not survive will not be survived by another.
_MOST_LOST = 5

T = TypeVar("T")


@dataclass(slots=True)
class _Running:
    """A job that runs here. `renewed_s`: when its claim and its record were last written."""

    claim: Claim
    task: asyncio.Task[None]
    renewed_s: float
    changed: bool = False
    engine_failed: bool = False


class SharedJobs(JobRunner):
    """`directory` has space for the files of the jobs that run here. `limits` are those of all servers together."""

    is_shared = True

    def __init__(self, kinds: JobKinds, limits: JobLimits, store: DatabaseStore, directory: Path) -> None:
        super().__init__()
        self._kinds, self._limits, self._store, self._directory = kinds, limits, store, directory
        self._running: dict[str, _Running] = {}
        self._counts: Counter[JobState] = Counter()
        self._feed = RecordFeed(store.records)
        self._look = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False

    @property
    def pending(self) -> int:
        """Jobs that run here, and those that wait for any server."""
        return len(self._running) + self._counts[JobState.QUEUED]

    @property
    def counts(self) -> Mapping[JobState, int]:
        return self._counts

    async def start(self) -> None:
        """Begin to work. Where the database does not answer it is asked again."""
        with suppress(OSError, RuntimeError):  # the jobs that run will say so; RuntimeError: there is no home directory
            self._directory = self._directory.expanduser()
            await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True, mode=0o700)
        work = (self._take_jobs(), self._renew(), self._sweep(), self._feed.run())
        self._tasks += [asyncio.create_task(one) for one in work]

    def drain(self) -> None:
        """End all `watch` calls and begin no more jobs: the server is about to stop."""
        self._draining = True
        self._feed.wake()

    async def close(self) -> None:
        running = list(self._running.values())
        for task in (*self._tasks, *(one.task for one in running)):
            task.cancel()
        await asyncio.gather(*self._tasks, *(one.task for one in running), return_exceptions=True)
        released = (self._store.release(one.claim, lost=one.engine_failed) for one in running)
        with suppress(TimeoutError):  # then the lease runs out
            async with asyncio.timeout(_RELEASE_S):
                await asyncio.gather(*released, return_exceptions=True)
        await self._store.database.close()

    async def check_room(self, owner: str = "") -> None:
        self._limits.check_jobs((await self._store.shares()).unfinished, owner)

    async def add(
        self, request: JobRequest, recording: BinaryIO, owner: str = "", *, text: TextSize | None = None
    ) -> JobRecord:
        record, size_bytes = new_job(request, recording, owner, text)
        claim = await self._store.add(record, size_bytes, partial(self._check, owner, size_bytes))
        try:
            await self._store.write(claim, RECORDING, recording)
            for number, clip in enumerate(clips(request)):
                await self._store.write(claim, clip_file(number), BytesIO(clip))
            await self._store.accept(claim)
        except BaseException as error:
            with suppress(JobsUnavailable):  # then the place is given up with its lease
                await self._store.remove(record.id, owner)
            if isinstance(error, ClaimLost):
                raise JobsUnavailable("The database of jobs was too slow for the recording.") from None
            raise
        self._counts[JobState.QUEUED] += 1
        self._look.set()
        return replace(record, request=with_clips(request, repeat(b"")))

    async def get(self, identity: str, owner: str = "") -> JobRecord:
        if (record := await self._store.get(identity, owner)) is None:
            raise not_found()
        return record

    async def result(self, identity: str, owner: str = "") -> tuple[Result, Content]:
        record = await self.get(identity, owner)
        if record.result is None:
            raise JobNotFinished(f"The job has no result: it is {record.state.value}.", param="job_id")
        size_bytes = await self._store.size_bytes(identity, RESULT)
        return record.result, _StoredContent(self._store, identity, size_bytes)

    async def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        told: JobRecord | None = None
        async with aclosing(self._feed.changes(await self.get(identity, owner))) as changes:
            async for record in changes:
                if record != told:
                    yield record
                told = record
                if record.state.over:
                    return
                if self._draining:
                    raise ShuttingDown("The server is stopping; the job continues without it.")

    async def remove(self, identity: str, owner: str = "") -> None:
        """Remove a job. If it runs here it is cancelled at once, and elsewhere when that server renews its claim.

        Raises `JobsUnavailable` and `JobNotFound`.
        """
        if not await self._store.remove(identity, owner):
            raise not_found()
        await self._stop(identity)
        self._feed.wake()

    def _check(self, owner: str, size_bytes: int, shares: Shares) -> None:
        self._limits.check_jobs(shares.unfinished, owner)
        free_bytes = self._limits.max_bytes - shares.size_bytes.total() - size_bytes
        self._limits.check_bytes(shares.size_bytes[owner] + size_bytes, free_bytes, owner)
        if free_bytes < 0:
            limit_mib = self._limits.max_bytes // 2**20
            raise JobsUnavailable(f"All jobs may take {limit_mib} MiB of the database (JOBS_DATABASE_MB).")

    async def _take_jobs(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):  # `wait_for` may forget that it is cancelled
                    await self._look.wait()
            self._look.clear()
            with suppress(JobsUnavailable):
                while len(self._running) < AT_ONCE and await self._take_one():
                    pass

    async def _take_one(self) -> bool:
        """Whether there was a job for this server."""
        if self._draining or any(one.engine_failed for one in self._running.values()):
            return False
        running = [one.claim.record for one in self._running.values()]
        # After an outage the servers that still run jobs have first to renew their claims.
        take_over = self._store.database.steady_s > LEASE_S
        claim = await self._store.claim(running, time.time(), take_over=take_over)
        if claim is None:
            return False
        if claim.lost:
            logger.warning("job of a server that is gone", id=claim.id, times=claim.lost)
        with logger.contextualize(id=claim.id):
            task = asyncio.create_task(self._run(claim))
        self._running[claim.id] = _Running(claim, task, time.monotonic())
        task.add_done_callback(partial(self._over, claim.id))
        self._feed.wake()
        return True

    def _over(self, identity: str, task: asyncio.Task[None]) -> None:
        del self._running[identity]
        self._look.set()
        self._feed.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("job ended unexpectedly", id=identity)

    async def _run(self, claim: Claim) -> None:
        began_s = time.monotonic()
        with suppress(ClaimLost):
            try:
                ended = await self._finished(claim)
            except OSError as error:
                ended = claim.record.failed(JobsUnavailable(f"STATE_DIR cannot be used ({error.strerror})."))
                ended = replace(ended, ended_at=time.time())
                await _when_answered(partial(self._store.end, claim, ended, self._limits.ttl_s))
            ended.log(time.monotonic() - began_s)

    async def _finished(self, claim: Claim) -> JobRecord:
        """The job's record after it was done and stored. Raises `OSError` and `ClaimLost`."""
        with await asyncio.to_thread(RunningFiles, self._store, claim, self._directory) as files:
            ended, content = await self._ended(claim, files)
            await _when_answered(partial(self._end, claim, files, ended, content))
        return ended

    async def _ended(self, claim: Claim, files: RunningFiles) -> tuple[JobRecord, bytes | None]:
        """How the job ended, and its result if that is no file."""
        run = JobRun(claim.record, files, self._limits.timeout_s, partial(self._report, claim.id))
        try:
            if claim.lost > _MOST_LOST:
                work = self._kinds.of(claim.record.request)
                raise work.unexpected_error(f"{claim.lost} servers ended while they ran this job.")
            await _when_answered(files.fetch)
            outcome = await self._kinds.process(run)
        except (EngineFailed, ShuttingDown) as error:  # this process ends, and another one runs the job
            self._running[claim.id].engine_failed = isinstance(error, EngineFailed)
            await asyncio.Event().wait()
            raise
        except AsrError as error:
            ended, content = self._running[claim.id].claim.record.failed(error), None
        else:
            ended, content = claim.record.succeeded(outcome.result, outcome.duration_s), outcome.content
        return replace(ended, ended_at=time.time()), content

    async def _end(self, claim: Claim, files: RunningFiles, ended: JobRecord, content: bytes | None) -> None:
        if ended.result is not None:
            await files.store_result(content)
        await self._store.end(claim, ended, self._limits.ttl_s)

    def _report(self, identity: str, progress: Progress) -> None:
        running = self._running[identity]
        record = replace(
            running.claim.record,
            done_s=progress.done_s,
            duration_s=progress.duration_s,
            done_characters=progress.done_characters,
        )
        running.claim, running.changed = replace(running.claim, record=record), True

    async def _renew(self) -> None:
        """Renew all claims, with the progress of their jobs, and count all jobs."""
        counted_s = -_RENEW_S
        while True:
            with suppress(JobsUnavailable):
                for identity, running in list(self._running.items()):
                    if running.changed or time.monotonic() - running.renewed_s >= _RENEW_S:
                        await self._renew_one(identity, running)
                if time.monotonic() - counted_s >= _RENEW_S:
                    self._counts, counted_s = await self._store.counts(), time.monotonic()
            await asyncio.sleep(_REPORT_S)

    async def _renew_one(self, identity: str, running: _Running) -> None:
        began_s, running.changed = time.monotonic(), False
        try:
            await self._store.renew(running.claim)
        except ClaimLost:
            if identity in self._running:  # it did not end meanwhile
                logger.warning("job was removed, or taken over by another server", id=identity)
                await self._stop(identity)
        else:
            running.renewed_s = began_s
            self._feed.wake()

    async def _stop(self, identity: str) -> None:
        if (running := self._running.get(identity)) is not None:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)

    async def _sweep(self) -> None:
        """Remove jobs after their time."""
        while True:
            with suppress(JobsUnavailable):
                await self._store.sweep()
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._limits.ttl_s)))


async def _when_answered(work: Callable[[], Awaitable[T]]) -> T:
    """What it returns, once the database answers. Who has lost the claim meanwhile is stopped."""
    while True:
        try:
            return await work()
        except JobsUnavailable:
            await asyncio.sleep(_RETRY_S)


@dataclass(frozen=True, slots=True)
class _StoredContent:
    """A result in the database. No connection is kept while its reader waits."""

    store: DatabaseStore
    identity: str
    size_bytes: int

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """In chunks."""
        return self.store.read(self.identity, RESULT)

    def close(self) -> None:
        """Nothing is open."""
