"""Runs the jobs in turn, a few at a time, and tells what becomes of them. The store keeps them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import BinaryIO

from loguru import logger

from asr_server.core.errors import (
    AsrError,
    JobNotFinished,
    JobNotFound,
    JobsUnavailable,
    Overloaded,
    ShuttingDown,
    TranscriptionFailed,
)
from asr_server.service.jobs.record import JobError, JobRecord, JobState
from asr_server.service.jobs.store import JobStore
from asr_server.service.output.render import Body
from asr_server.service.processor import OnProgress, Request, RequestProcessor, Result, as_bulk

# One transcribes while another is decoded or rendered; more would only share the same batch.
_AT_ONCE = 2
_SWEEP_S = 60.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class JobRules:
    """`ttl_s`: how long a finished job is kept; `timeout_s`: how long one may run; `most`: how many may wait."""

    ttl_s: float
    timeout_s: float
    most: int


class Jobs:
    """All jobs of the server. Used from the event loop; files are written in threads."""

    def __init__(self, producer: RequestProcessor, rules: JobRules, store: JobStore | JobsUnavailable) -> None:
        self._producer = producer
        self._rules = rules
        self._store_or_reason = store
        self._records: dict[str, JobRecord] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._coming = 0  # jobs whose recordings are being kept
        self._draining = False

    @property
    def under_way(self) -> int:
        """Jobs that wait or run."""
        return sum(not record.state.over for record in self._records.values())

    @property
    def counts(self) -> Mapping[JobState, int]:
        """How many jobs are kept in each state."""
        return Counter(record.state for record in self._records.values())

    async def start(self) -> None:
        """Take up what an earlier server left, and begin."""
        if isinstance(self._store_or_reason, JobsUnavailable):
            logger.warning("jobs are off", reason=self._store_or_reason.message)
            return
        for record in await asyncio.to_thread(self._store_or_reason.records):
            self._take(record if record.state.over else record.queued_again())
        self._tasks = [asyncio.create_task(self._work()) for _ in range(_AT_ONCE)]
        self._tasks.append(asyncio.create_task(self._sweep()))

    def drain(self) -> None:
        """Send the watchers away: the server is about to stop, and a job may take longer than it waits."""
        self._draining = True
        for news in self._news.values():
            news.set()

    async def close(self) -> None:
        """Stop. What runs is left for the next server, which begins it anew."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if isinstance(self._store_or_reason, JobStore):
            self._store_or_reason.close()

    async def add(self, request: Request, recording: BinaryIO, owner: str = "") -> JobRecord:
        """Take a job. Raises `JobsUnavailable`, and `Overloaded` when too many wait."""
        store = self._store
        if self.under_way + self._coming >= self._rules.most:
            raise Overloaded("Too many jobs are waiting; try again later.", retry_after_s=60)
        record = JobRecord(f"job_{secrets.token_urlsafe(18)}", request, time.time(), owner=owner)
        self._coming += 1
        try:
            await asyncio.to_thread(store.add, record, recording)
        finally:
            self._coming -= 1
        self._take(record)
        return record

    def get(self, identity: str, owner: str = "") -> JobRecord:
        """The job as it stands. Raises `JobNotFound`, for those of other owners too."""
        record = self._records.get(identity)
        if record is None or record.owner != owner:
            raise JobNotFound("There is no job of this id; finished ones are kept for JOB_TTL.", param="job_id")
        return record

    async def result(self, identity: str, owner: str = "") -> Body:
        """What a job made. Raises `JobNotFound` and `JobNotFinished`; see the record for why one failed."""
        record = self.get(identity, owner)
        if record.state is not JobState.SUCCEEDED:
            raise JobNotFinished(f"The job has no result: it is {record.state.value}.", param="job_id")
        try:
            return Body(await asyncio.to_thread(self._store.result, identity), record.media_type, record.notes)
        except FileNotFoundError:
            raise JobNotFound("The job was removed.", param="job_id") from None

    async def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        """The job as it stands, and again at every change, until it is over or removed.

        Raises `JobNotFound`, and `ShuttingDown` where the next server will know more.
        """
        record: JobRecord | None = self.get(identity, owner)
        while record is not None:
            news = self._news[identity]
            yield record
            if record.state.over:
                return
            if self._draining:
                raise ShuttingDown("The server is stopping; the job is kept for the next.")
            await news.wait()
            record = self._records.get(identity)

    async def remove(self, identity: str, owner: str = "") -> None:
        """Stop a job if it runs, and forget it. Raises `JobNotFound`."""
        self.get(identity, owner)
        del self._records[identity]
        self._news.pop(identity).set()
        if (task := self._running.get(identity)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(self._store.remove, identity)

    @property
    def _store(self) -> JobStore:
        if isinstance(self._store_or_reason, JobsUnavailable):
            raise self._store_or_reason
        return self._store_or_reason

    def _take(self, record: JobRecord) -> None:
        self._records[record.id] = record
        self._news[record.id] = asyncio.Event()
        if not record.state.over:
            self._queue.put_nowait(record.id)

    def _tell(self, record: JobRecord) -> None:
        """Publish a change, unless the job was removed meanwhile."""
        if record.id in self._records:
            self._records[record.id] = record
            self._news[record.id].set()
            self._news[record.id] = asyncio.Event()

    async def _work(self) -> None:
        while True:
            identity = await self._queue.get()
            if identity not in self._records:
                continue
            self._running[identity] = task = asyncio.create_task(self._run(self._records[identity]))
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._running[identity]

    async def _run(self, record: JobRecord) -> None:
        record = replace(record, state=JobState.RUNNING, started_at=time.time())
        self._tell(record)
        try:
            product = await self._product(record)
        except AsrError as error:
            failed = replace(
                self._records[record.id], state=JobState.FAILED, ended_at=time.time(), error=JobError.of(error)
            )
            await self._end(failed, None)
            return
        duration_s = product.transcript.duration_ms / 1000
        done = replace(
            record,
            state=JobState.SUCCEEDED,
            ended_at=time.time(),
            done_s=duration_s,
            duration_s=duration_s,
            media_type=product.body.media_type,
            notes=product.body.notes,
        )
        await self._end(done, product.body.content)

    async def _product(self, record: JobRecord) -> Result:
        request = as_bulk(record.request, self._rules.timeout_s)
        try:
            with self._store.recording(record.id) as recording:
                while True:
                    try:
                        return await self._producer.produce(recording, request, self._on_progress(record.id))
                    except Overloaded:  # callers who wait in front of a screen go first
                        await asyncio.sleep(_RETRY_S)
        except AsrError:
            raise
        except Exception as error:  # the loop of the jobs must outlive every one of them
            logger.opt(exception=error).error("job failed unexpectedly", id=record.id)
            raise TranscriptionFailed("The server failed on this job; its log has the details.") from error

    def _on_progress(self, identity: str) -> OnProgress:
        def tell(done_s: float, duration_s: float) -> None:
            if (record := self._records.get(identity)) is not None:
                self._tell(replace(record, done_s=done_s, duration_s=max(done_s, duration_s) if duration_s else 0.0))

        return tell

    async def _end(self, record: JobRecord, result: bytes | None) -> None:
        store = self._store
        try:
            if result is None:
                await asyncio.to_thread(store.update, record)
                await asyncio.to_thread(store.forget_recording, record.id)
            else:
                await asyncio.to_thread(store.finish, record, result)
        except OSError as error:
            reason = JobsUnavailable(f"The result cannot be kept ({error.strerror}).")
            record = replace(record, state=JobState.FAILED, error=JobError.of(reason))
            with suppress(OSError):  # the room of the recording may do to say so, also to the next server
                await asyncio.to_thread(store.forget_recording, record.id)
                await asyncio.to_thread(store.update, record)
        self._tell(record)
        logger.info(
            "job",
            id=record.id,
            outcome=record.error.code if record.error else "ok",
            audio_s=round(record.duration_s, 3),
            waited_s=round(record.started_at - record.created_at, 3),
            took_s=round(record.ended_at - record.started_at, 3),
        )

    async def _sweep(self) -> None:
        """Forget what is older than its time."""
        while True:
            oldest = time.time() - self._rules.ttl_s
            for record in [r for r in self._records.values() if r.state.over and r.ended_at < oldest]:
                with suppress(JobNotFound):
                    await self.remove(record.id, record.owner)
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._rules.ttl_s)))
