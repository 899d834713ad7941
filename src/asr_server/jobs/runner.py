"""Jobs of one server: runs those in its `JobStore`, a few at a time, in turn for each key; publishes their progress.

`shared_jobs.py` has those of several servers with one database.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import BinaryIO

from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, JobNotFinished, JobNotFound, JobsUnavailable, ShuttingDown
from asr_server.jobs.base import JobRunner
from asr_server.jobs.content import Content, FileContent
from asr_server.jobs.record import JobRecord, JobRequest, JobState, with_clips
from asr_server.jobs.shares import AT_ONCE, AT_ONCE_EACH, JobLimits, WaitingJobs
from asr_server.jobs.store import JobStore
from asr_server.jobs.work import JobKinds, JobRun, Progress, TextSize, new_job, not_found
from asr_server.recordings.requests import Result

_SWEEP_S = 60.0
# Where STATE_DIR cannot be used, it is tried again: another server may end, and a disk may get space.
_OPEN_AGAIN_S = 10.0
# For results whose time passed before this start: they are kept once more, since the clock may have been wrong.
_GRACE_S = 3_600.0

OpenStore = Callable[[], JobStore]


class Jobs(JobRunner):
    """All jobs of the server. Files are read and written in threads.

    `open_store` raises `JobsUnavailable` where there can be no jobs now.
    """

    is_shared = False

    def __init__(self, kinds: JobKinds, limits: JobLimits, open_store: OpenStore) -> None:
        super().__init__()
        self._kinds = kinds
        self._limits = limits
        self._open_store = open_store
        self._store_or_reason: JobStore | str = "The server is starting."
        self._records: dict[str, JobRecord] = {}
        self._bytes: dict[str, int] = {}  # on the disk
        self._removed_at_s: dict[str, float] = {}  # monotonic, of finished jobs: nobody can set that clock
        self._changed: dict[str, asyncio.Event] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._queue = WaitingJobs(AT_ONCE_EACH)
        self._tasks: list[asyncio.Task[None]] = []
        # Jobs whose recordings are being stored, and the bytes of these, by owner.
        self._arriving: Counter[str] = Counter()
        self._arriving_bytes: Counter[str] = Counter()
        self._draining = False

    @property
    def pending(self) -> int:
        return sum(not record.state.over for record in self._records.values())

    @property
    def counts(self) -> Mapping[JobState, int]:
        return Counter(record.state for record in self._records.values())

    async def start(self) -> None:
        if not await self._open():
            self._tasks.append(asyncio.create_task(self._open_later()))
        self._tasks += [asyncio.create_task(self._work()) for _ in range(AT_ONCE)]
        self._tasks.append(asyncio.create_task(self._sweep()))

    def drain(self) -> None:
        self._draining = True
        for changed in self._changed.values():
            changed.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if isinstance(self._store_or_reason, JobStore):
            self._store_or_reason.close()

    async def check_room(self, owner: str = "") -> None:
        self._opened()
        unfinished = Counter(record.owner for record in self._records.values() if not record.state.over)
        self._limits.check_jobs(unfinished + self._arriving, owner)

    async def add(
        self, request: JobRequest, recording: BinaryIO, owner: str = "", *, text: TextSize | None = None
    ) -> JobRecord:
        store = self._opened()
        await self.check_room(owner)
        record, size_bytes = new_job(request, recording, owner, text)
        self._arriving[owner] += 1
        self._arriving_bytes[owner] += size_bytes
        try:
            free_bytes = await asyncio.to_thread(store.free_bytes)
            free_bytes -= sum(other.expected_bytes for other in self._records.values() if not other.state.over)
            if record.expected_bytes and self._arriving_bytes.total() > free_bytes:
                needed_mib = record.expected_bytes // 2**20
                raise JobsUnavailable(f"The speech may take {needed_mib} MiB of the disk, which has less.")
            kept_bytes = sum(self._bytes[other.id] for other in self._records.values() if other.owner == owner)
            arriving_bytes = self._arriving_bytes
            self._limits.check_bytes(kept_bytes + arriving_bytes[owner], free_bytes - arriving_bytes.total(), owner)
            await asyncio.to_thread(store.add, record, recording)
            size_bytes_stored = await asyncio.to_thread(store.size_bytes, record.id)
        finally:
            self._arriving[owner] -= 1
            self._arriving_bytes[owner] -= size_bytes
        record = replace(record, request=with_clips(request, repeat(b"")))
        self._enqueue(record, size_bytes_stored)
        return record

    async def get(self, identity: str, owner: str = "") -> JobRecord:
        return self._of_owner(identity, owner)

    def _of_owner(self, identity: str, owner: str) -> JobRecord:
        record = self._records.get(identity)
        if record is None or record.owner != owner:
            raise not_found()
        return record

    async def result(self, identity: str, owner: str = "") -> tuple[Result, Content]:
        record = self._of_owner(identity, owner)
        if record.result is None:
            raise JobNotFinished(f"The job has no result: it is {record.state.value}.", param="job_id")
        try:
            file = await asyncio.to_thread(self._opened().result, identity)
        except FileNotFoundError:
            raise JobNotFound("The job was removed.", param="job_id") from None
        except OSError as error:
            raise JobsUnavailable(f"The result cannot be read ({error.strerror}).") from error
        return record.result, FileContent(file)

    async def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        record: JobRecord | None = self._of_owner(identity, owner)
        while record is not None:
            changed = self._changed[identity]
            yield record
            if record.state.over:
                return
            if self._draining:
                raise ShuttingDown("The server is stopping; the job continues when it runs again.")
            await changed.wait()
            record = self._records.get(identity)

    async def remove(self, identity: str, owner: str = "") -> None:
        record, size_bytes = self._of_owner(identity, owner), self._bytes.pop(identity)
        del self._records[identity]
        self._removed_at_s.pop(identity, None)
        self._queue.remove(owner, identity)
        self._changed.pop(identity).set()
        if (task := self._running.get(identity)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._opened().remove, identity)
        except JobsUnavailable:
            self._enqueue(record if record.state.over else record.queued_again(), size_bytes)
            raise

    def _opened(self) -> JobStore:
        if isinstance(self._store_or_reason, str):
            raise JobsUnavailable(self._store_or_reason)
        return self._store_or_reason

    async def _open(self) -> bool:
        """Whether there are jobs from now on."""
        try:
            store, records = await asyncio.to_thread(self._load)
        except JobsUnavailable as reason:
            if reason.message != self._store_or_reason:
                logger.warning("jobs are off", reason=reason.message)
            self._store_or_reason = reason.message
            return False
        self._store_or_reason = store
        for record in records:
            kept = await asyncio.to_thread(self._kept, record) if record.state.over else record.queued_again()
            self._enqueue(kept, await asyncio.to_thread(store.size_bytes, record.id))
        return True

    async def _open_later(self) -> None:
        opened = False
        while not opened:
            await asyncio.sleep(_OPEN_AGAIN_S)
            opened = await self._open()
        logger.info("jobs are on")

    def _load(self) -> tuple[JobStore, list[JobRecord]]:
        store = self._open_store()
        try:
            return store, store.records()
        except JobsUnavailable:
            store.close()
            raise

    def _kept(self, record: JobRecord) -> JobRecord:
        """A job of an earlier server, which says when it is removed where its end does not."""
        age_s, ttl_s = time.time() - record.ended_at, self._limits.ttl_s
        if record.expires_at or 0 <= age_s < ttl_s:
            return record
        kept = replace(record, expires_at=time.time() + (min(_GRACE_S, ttl_s) if age_s > 0 else ttl_s))
        with suppress(OSError):
            self._opened().update(kept)
        return kept

    def _enqueue(self, record: JobRecord, size_bytes: int) -> None:
        self._records[record.id] = record
        self._bytes[record.id] = size_bytes if record.state.over else max(size_bytes, record.expected_bytes)
        self._changed[record.id] = asyncio.Event()
        if record.state.over:
            self._remove_later(record)
        else:
            self._queue.put(record.owner, record.id)

    def _remove_later(self, record: JobRecord) -> None:
        """Set the time of its removal, which is at most `ttl_s` ahead, whatever the clock says."""
        left_s = (record.expires_at or record.ended_at + self._limits.ttl_s) - time.time()
        self._removed_at_s[record.id] = time.monotonic() + min(max(left_s, 0.0), self._limits.ttl_s)

    def _publish(self, record: JobRecord) -> None:
        """Publish a change, unless the job was removed meanwhile."""
        if record.id in self._records:
            self._records[record.id] = record
            self._changed[record.id].set()
            self._changed[record.id] = asyncio.Event()

    async def _work(self) -> None:
        while True:
            identity = await self._queue.next()
            record = self._records[identity]
            with logger.contextualize(id=identity):
                self._running[identity] = task = asyncio.create_task(self._run(record))
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._running[identity]
                self._queue.end(record.owner)

    async def _run(self, record: JobRecord) -> None:
        record = replace(record, state=JobState.RUNNING, started_at=time.time())
        began_s = time.monotonic()
        self._publish(record)
        run = JobRun(record, self._opened(), self._limits.timeout_s, partial(self._report, record.id))
        content = None
        try:
            outcome = await self._kinds.process(run)
        except (EngineFailed, ShuttingDown):  # this process ends, and the next server runs the job again
            await asyncio.Event().wait()
            raise
        except AsrError as error:
            ended = self._records[record.id].failed(error)
        else:
            ended, content = record.succeeded(outcome.result, outcome.duration_s), outcome.content
        ended = replace(ended, ended_at=time.time())
        await self._end(ended, content, time.monotonic() - began_s)

    def _report(self, identity: str, progress: Progress) -> None:
        if (record := self._records.get(identity)) is not None:
            self._publish(
                replace(
                    record,
                    done_s=progress.done_s,
                    duration_s=progress.duration_s,
                    done_characters=progress.done_characters,
                )
            )

    async def _end(self, record: JobRecord, result: bytes | None, took_s: float) -> None:
        store = self._opened()
        try:
            await asyncio.to_thread(store.end, record, result)
        except OSError as error:
            record = record.failed(JobsUnavailable(f"The result cannot be stored ({error.strerror})."))
            with suppress(OSError):
                await asyncio.to_thread(store.end, record, None)
        size_bytes = await asyncio.to_thread(store.size_bytes, record.id)
        if record.id in self._records:
            self._bytes[record.id] = size_bytes
            self._removed_at_s[record.id] = time.monotonic() + self._limits.ttl_s
        self._publish(record)
        record.log(took_s)

    async def _sweep(self) -> None:
        """Remove finished jobs after their time."""
        while True:
            now_s = time.monotonic()
            for identity in [identity for identity, at_s in self._removed_at_s.items() if at_s <= now_s]:
                with suppress(JobNotFound, JobsUnavailable):
                    await self.remove(identity, self._records[identity].owner)
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._limits.ttl_s)))
