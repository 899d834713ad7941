"""Runs jobs in the order in which they came, a few at a time, and publishes their progress."""

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
from asr_server.scheduling.job import Priority
from asr_server.service.jobs.record import JobError, JobRecord, JobState
from asr_server.service.jobs.store import JobStore
from asr_server.service.processor import RequestProcessor
from asr_server.service.recordings.pipeline import Emit, Event, RunOptions, SegmentDone, Started
from asr_server.service.requests import Request, Result

# One is transcribed while another is decoded or rendered. More would only share the same batch.
_AT_ONCE = 2
_SWEEP_S = 60.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class JobLimits:
    """`ttl_s`: how long finished jobs are kept. `timeout_s`: how long one may run. `max_jobs`: how many may wait."""

    ttl_s: float
    timeout_s: float
    max_jobs: int


class Jobs:
    """All jobs of the server. Used from the event loop; files are read and written in threads."""

    def __init__(self, processor: RequestProcessor, limits: JobLimits, store: JobStore | JobsUnavailable) -> None:
        self._processor = processor
        self._limits = limits
        self._store_or_reason = store
        self._records: dict[str, JobRecord] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._arriving = 0  # jobs whose recordings are being stored
        self._draining = False

    @property
    def pending(self) -> int:
        """Jobs that wait or run."""
        return sum(not record.state.over for record in self._records.values())

    @property
    def counts(self) -> Mapping[JobState, int]:
        """How many jobs are in each state."""
        return Counter(record.state for record in self._records.values())

    async def start(self) -> None:
        """Load the jobs of an earlier server and begin to work."""
        if isinstance(self._store_or_reason, JobsUnavailable):
            logger.warning("jobs are off", reason=self._store_or_reason.message)
            return
        for record in await asyncio.to_thread(self._store_or_reason.records):
            self._enqueue(record if record.state.over else record.queued_again())
        self._tasks = [asyncio.create_task(self._work()) for _ in range(_AT_ONCE)]
        self._tasks.append(asyncio.create_task(self._sweep()))

    def drain(self) -> None:
        """End all `watch` calls: the server is about to stop, and does not wait for jobs."""
        self._draining = True
        for changed in self._changed.values():
            changed.set()

    async def close(self) -> None:
        """Stop. The next server runs unfinished jobs again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if isinstance(self._store_or_reason, JobStore):
            self._store_or_reason.close()

    async def add(self, request: Request, recording: BinaryIO, owner: str = "") -> JobRecord:
        """Accept a job. Raises `JobsUnavailable`, and `Overloaded` if too many wait."""
        store = self._store
        if self.pending + self._arriving >= self._limits.max_jobs:
            raise Overloaded("Too many jobs are waiting; try again later.", retry_after_s=60)
        record = JobRecord(f"job_{secrets.token_urlsafe(18)}", request, time.time(), owner=owner)
        self._arriving += 1
        try:
            await asyncio.to_thread(store.add, record, recording)
        finally:
            self._arriving -= 1
        self._enqueue(record)
        return record

    def get(self, identity: str, owner: str = "") -> JobRecord:
        """The job's record. Raises `JobNotFound`, also for jobs of other owners."""
        record = self._records.get(identity)
        if record is None or record.owner != owner:
            raise JobNotFound("There is no job of this id; finished ones are kept for JOB_TTL.", param="job_id")
        return record

    async def result(self, identity: str, owner: str = "") -> Result:
        """The job's answer. Raises `JobNotFound` and `JobNotFinished`; the record says why a job failed."""
        record = self.get(identity, owner)
        if record.result is None:
            raise JobNotFinished(f"The job has no result: it is {record.state.value}.", param="job_id")
        try:
            return replace(record.result, content=await asyncio.to_thread(self._store.result, identity))
        except FileNotFoundError:
            raise JobNotFound("The job was removed.", param="job_id") from None

    async def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        """The job's record, and again at every change, until the job is over or removed.

        Raises `JobNotFound`, and `ShuttingDown` if the next server will run the job.
        """
        record: JobRecord | None = self.get(identity, owner)
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
        """Cancel a job if it runs, and remove it. Raises `JobNotFound`."""
        self.get(identity, owner)
        del self._records[identity]
        self._changed.pop(identity).set()
        if (task := self._running.get(identity)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(self._store.remove, identity)

    @property
    def _store(self) -> JobStore:
        if isinstance(self._store_or_reason, JobsUnavailable):
            raise self._store_or_reason
        return self._store_or_reason

    def _enqueue(self, record: JobRecord) -> None:
        self._records[record.id] = record
        self._changed[record.id] = asyncio.Event()
        if not record.state.over:
            self._queue.put_nowait(record.id)

    def _publish(self, record: JobRecord) -> None:
        """Publish a change, unless the job was removed meanwhile."""
        if record.id in self._records:
            self._records[record.id] = record
            self._changed[record.id].set()
            self._changed[record.id] = asyncio.Event()

    async def _work(self) -> None:
        while True:
            identity = await self._queue.get()
            if identity not in self._records:
                continue
            with logger.contextualize(id=identity):
                self._running[identity] = task = asyncio.create_task(self._run(self._records[identity]))
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._running[identity]

    async def _run(self, record: JobRecord) -> None:
        record = replace(record, state=JobState.RUNNING, started_at=time.time())
        self._publish(record)
        try:
            result, duration_s = await self._process(record)
        except AsrError as error:
            failed = replace(
                self._records[record.id], state=JobState.FAILED, ended_at=time.time(), error=JobError.of(error)
            )
            await self._end(failed, None)
            return
        done = replace(
            record,
            state=JobState.SUCCEEDED,
            ended_at=time.time(),
            done_s=duration_s,
            duration_s=duration_s,
            result=replace(result, content=b""),
        )
        await self._end(done, result.content)

    async def _process(self, record: JobRecord) -> tuple[Result, float]:
        """The answer, and how long the recording is."""
        options = RunOptions(Priority.BULK, self._limits.timeout_s)
        try:
            with self._store.recording(record.id) as recording:
                while True:
                    try:
                        result, transcript = await self._processor.process(
                            recording, record.request, options, self._on_event(record.id)
                        )
                    except Overloaded:  # a job has been accepted already: it waits for callers who wait for an answer
                        await asyncio.sleep(_RETRY_S)
                    else:
                        return result, transcript.duration_ms / 1000
        except AsrError:
            raise
        except Exception as error:  # a fault of one job must not end the loop that runs all of them
            logger.opt(exception=error).error("job failed unexpectedly", id=record.id)
            raise TranscriptionFailed("The server failed on this job; its log has the details.") from error

    def _on_event(self, identity: str) -> Emit:
        claimed_s = 0.0

        async def publish_progress(event: Event) -> None:
            nonlocal claimed_s
            if isinstance(event, Started):
                claimed_s = event.claimed_s
            elif isinstance(event, SegmentDone) and (record := self._records.get(identity)) is not None:
                done_s = event.segment.end_ms / 1000
                self._publish(replace(record, done_s=done_s, duration_s=max(done_s, claimed_s) if claimed_s else 0.0))

        return publish_progress

    async def _end(self, record: JobRecord, result: bytes | None) -> None:
        store = self._store
        try:
            if result is None:
                await asyncio.to_thread(store.update, record)
                await asyncio.to_thread(store.remove_recording, record.id)
            else:
                await asyncio.to_thread(store.finish, record, result)
        except OSError as error:
            reason = JobsUnavailable(f"The result cannot be stored ({error.strerror}).")
            record = replace(record, state=JobState.FAILED, error=JobError.of(reason))
            with suppress(OSError):  # without the recording there may be space for the record
                await asyncio.to_thread(store.remove_recording, record.id)
                await asyncio.to_thread(store.update, record)
        self._publish(record)
        logger.info(
            "job",
            id=record.id,
            outcome=record.error.code if record.error else "ok",
            audio_s=round(record.duration_s, 3),
            waited_s=round(record.started_at - record.created_at, 3),
            took_s=round(record.ended_at - record.started_at, 3),
        )

    async def _sweep(self) -> None:
        """Remove finished jobs after their time."""
        while True:
            oldest = time.time() - self._limits.ttl_s
            for record in [r for r in self._records.values() if r.state.over and r.ended_at < oldest]:
                with suppress(JobNotFound):
                    await self.remove(record.id, record.owner)
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._limits.ttl_s)))
