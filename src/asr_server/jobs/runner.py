"""Kinds of jobs, of which recordings are one, and the runner of jobs.

It runs those whose turn it is in a store, a few at a time, and answers for all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import SEEK_END
from itertools import repeat
from typing import BinaryIO, ClassVar, Protocol, TypeVar, get_args

import pydantic_core
from loguru import logger

from asr_server.core.errors import (
    AsrError,
    EngineFailed,
    IdempotencyKeyReused,
    JobNotFinished,
    JobNotFound,
    JobsUnavailable,
    Overloaded,
    ShuttingDown,
    TranscriptionFailed,
)
from asr_server.core.transcript import Transcript
from asr_server.jobs.follow_ups import FollowUpKind, FollowUps
from asr_server.jobs.record import (
    FollowUp,
    JobPriority,
    JobRecord,
    JobRequest,
    RecordState,
    clips,
    id_of,
    new_id,
    transcript_dumped,
    transcript_loaded,
    with_clips,
)
from asr_server.jobs.store import AT_ONCE, ArrivingTexts, Claim, ClaimLost, Content, JobFiles, JobLimits, JobStore
from asr_server.processes.caller_work import FairShares, in_thread, work_for
from asr_server.recordings.pipeline import Emit, Event, RequestProcessor, RunOptions, SegmentDone, Started
from asr_server.recordings.requests import Request, Result, TranslationRequest
from asr_server.schedule.job import Priority

_RETRY_S = 1.0
_BLOCK_BYTES = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Seconds of audio that are done, and of all about, 0 if unknown; characters of a text that are spoken."""

    done_s: float
    duration_s: float
    done_characters: int = 0


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job."""

    record: JobRecord
    store: JobFiles
    timeout_s: float  # of the whole run
    report: Callable[[JobProgress], None]  # publishes its progress


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job."""

    result: Result
    content: bytes | None  # of the result, None if it is in the store already
    duration_s: float  # of the audio


class JobKind(Protocol):
    """One kind of jobs."""

    request_types: ClassVar[tuple[type[JobRequest], ...]]
    unexpected_error: ClassVar[type[AsrError]]  # of a job after an exception that is no `AsrError`

    async def process(self, run: JobRun) -> JobOutcome:
        """Raises `AsrError`, and `OSError` for the files of the job. Cancelling it stops all work; the same job may
        be processed again afterwards."""


class RecordingJobs:
    """Processes recordings as bulk work."""

    request_types: ClassVar[tuple[type[JobRequest], ...]] = get_args(Request)
    unexpected_error: ClassVar[type[AsrError]] = TranscriptionFailed

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    async def process(self, run: JobRun) -> JobOutcome:
        """The answer that the route gives. Raises as `JobKind`."""
        record = run.record
        request = await asyncio.to_thread(run.store.request, record)
        assert isinstance(request, Request)
        keeps = not isinstance(request, TranslationRequest)  # another format of one would be another translation
        options = RunOptions(
            Priority.BULK,
            run.timeout_s,
            caller=record.owner,
            owner=record.owner,
            tells_unheard=request.output.tells_unheard,
            keeps_words=keeps,
        )
        with run.store.recording(record.id) as recording:
            work = partial(self._processor.process, recording, request, options, _reporting(run))
            result, transcript = await when_there_is_room(work)
        if keeps:
            await asyncio.to_thread(_keep, run, transcript)
        return JobOutcome(replace(result, content=b""), result.content, transcript.duration_ms / 1000)


def _keep(run: JobRun, transcript: Transcript) -> None:
    """Store the transcript for other formats. Without space the result has one format alone."""
    try:
        run.store.keep_transcript(run.record.id, transcript_dumped(transcript))
    except OSError as error:
        logger.warning("transcript of a job is not stored", reason=error.strerror)


def _reporting(run: JobRun) -> Emit:
    claimed_s = 0.0

    async def report(event: Event) -> None:
        nonlocal claimed_s
        if isinstance(event, Started):
            claimed_s = event.claimed_s
        elif isinstance(event, SegmentDone):
            done_s = event.segment.end_ms / 1000
            run.report(JobProgress(done_s, max(done_s, claimed_s) if claimed_s else 0.0))

    return report


def kind_of(kinds: tuple[JobKind, ...], request: JobRequest) -> JobKind:
    """Return the kind that takes the request."""
    return next(kind for kind in kinds if isinstance(request, kind.request_types))


async def process(kind: JobKind, run: JobRun) -> JobOutcome:
    """Do one job. Raises `AsrError` alone."""
    try:
        return await kind.process(run)
    except AsrError:
        raise
    except OSError as error:
        raise JobsUnavailable(f"The files of the job cannot be read or written ({error.strerror}).") from error
    except Exception as error:  # a fault of one job must not end the loop that runs all of them
        logger.opt(exception=error).error("job failed unexpectedly", id=run.record.id)
        raise kind.unexpected_error("The server failed on this job; its log has the details.") from error


@dataclass(frozen=True, slots=True)
class TextSize:
    """The size of a text that is a job."""

    characters: int
    expected_bytes: int  # that its result will take on the disk at most, about


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of a job that are not those of its kind."""

    key: str = ""  # the `Idempotency-Key`, "" for none
    follow_ups: tuple[FollowUp, ...] = ()
    priority: JobPriority = JobPriority.NORMAL


NO_OPTIONS = JobOptions()


def new_job(
    request: JobRequest, recording: BinaryIO, owner: str, text: TextSize | None = None
) -> tuple[JobRecord, int]:
    """The record of a job that is about to be accepted, and the bytes that it will take. `recording`: or the text, of
    that size."""
    record = JobRecord(new_id(), request, time.time(), owner=owner)
    if text is not None:
        record = replace(record, characters=text.characters, expected_bytes=text.expected_bytes)
    return record, recording.seek(0, SEEK_END) + sum(map(len, clips(request))) + record.expected_bytes


def _digest(request: JobRequest, recording: BinaryIO, follow_ups: tuple[FollowUp, ...]) -> str:
    """Return what tells this request and recording from others."""
    digest = hashlib.sha256(pydantic_core.to_json(request, bytes_mode="base64", inf_nan_mode="constants"))
    for one in follow_ups:
        digest.update(f"{one.field} {one.url}\n".encode())
    recording.seek(0)
    while block := recording.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


async def when_there_is_room(work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns, when it is not refused as too much any more: a job has been accepted already, and
    waits for callers who wait for an answer."""
    while True:
        try:
            return await work()
        except Overloaded:
            await asyncio.sleep(_RETRY_S)


async def when_answered(work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns, once the store answers. Who has lost the claim meanwhile is stopped."""
    while True:
        try:
            return await work()
        except JobsUnavailable:
            await asyncio.sleep(_RETRY_S)


# A claim is renewed after this long, and sooner when its job went on.
_RENEW_S, _REPORT_S = 5.0, 1.0
# Between two looks for a job, where no event of this server says that there is one.
_LOOK_S = 1.0
_SWEEP_S = 60.0
_RELEASE_S = 5.0
# A job that so many servers did not survive will not be survived by another.
_MOST_LOST = 5


@dataclass(slots=True)
class _Running:
    """A job that runs here."""

    claim: Claim
    task: asyncio.Task[None]
    renewed_s: float  # when its claim and its record were last written
    changed: bool = False
    engine_failed: bool = False
    is_ending: bool = False  # its end is being stored


class JobRunner:
    """Accepts jobs, runs them, and answers for them. Used from the event loop.

    Jobs of another owner are not found. Every method raises `JobsUnavailable` where there can be no jobs now.
    """

    def __init__(
        self,
        kinds: tuple[JobKind, ...],
        limits: JobLimits,
        store: JobStore,
        follow_ups: Iterable[FollowUpKind] = (),
    ) -> None:
        self._kinds, self._limits, self._store = kinds, limits, store
        self.follow_ups = FollowUps(follow_ups, store)
        self._arriving_texts = ArrivingTexts()
        self._reading = FairShares(1, 2)
        self._arriving: set[str] = set()  # the ids of jobs with an `Idempotency-Key` that are being stored
        self._running: dict[str, _Running] = {}
        self._look = asyncio.Event()
        self._reported = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False

    @property
    def is_shared(self) -> bool:
        """True if other servers have the same jobs."""
        return self._store.is_shared

    @property
    def pending(self) -> int:
        """Jobs that run here, those that wait for any server, and ended ones whose requests this server has to send."""
        return len(self._running) + self.counts.get(RecordState.QUEUED, 0) + self.follow_ups.pending

    @property
    def counts(self) -> Mapping[RecordState, int]:
        """Count the jobs in each state; if they are shared, on all servers."""
        return self._store.counts

    async def start(self) -> None:
        """Begin to work, on the jobs of an earlier server too. Raises nothing: what is missing is tried again."""
        await self._store.start()
        work = (self._take_jobs(), self._renew(), self._sweep(), self.follow_ups.run())
        self._tasks += [asyncio.create_task(one) for one in work]

    def drain(self) -> None:
        """End all `watch` calls: the server is about to stop. It begins no more jobs that another server may begin."""
        self._draining = True
        self._store.wake()

    async def close(self) -> None:
        """Stop. Jobs that are not finished run again, on the next server or on another."""
        running = list(self._running.values())
        for task in (*self._tasks, *(one.task for one in running)):
            task.cancel()
        await asyncio.gather(*self._tasks, *(one.task for one in running), return_exceptions=True)
        released = (self._store.release(one.claim, lost=one.engine_failed) for one in running)
        with suppress(TimeoutError):  # then the lease runs out
            async with asyncio.timeout(_RELEASE_S):
                await asyncio.gather(*released, return_exceptions=True)
        await self._store.close()

    async def check_room(self, owner: str = "", key: str = "") -> None:
        """Raise `Overloaded` if the owner or all together have too many jobs, unless there is a job with this `key`.
        For callers whose recording has not arrived yet."""
        if key and await self._store.get(id_of(owner, key), owner) is not None:
            return
        self._limits.check_jobs(await self._store.unfinished(), owner)

    @asynccontextmanager
    async def room_for_text(self, owner: str = "", caller: str = "", key: str = "") -> AsyncIterator[None]:
        """Hold room in the memory for a text that has not arrived yet, until the block ends. `caller`: the owner, or an
        address. Raises as `check_room`."""
        await self.check_room(owner, key)
        with self._arriving_texts.one(caller or owner):
            yield

    async def add(
        self,
        request: JobRequest,
        recording: BinaryIO,
        owner: str = "",
        *,
        text: TextSize | None = None,
        options: JobOptions = NO_OPTIONS,
    ) -> JobRecord:
        """Accept a job, or return the owner's job with the key of the options if it is there. `recording`: or the text,
        of that size.

        Raises `Overloaded` if too many wait or take too much space, or if the job of the key is just being stored, and
        `IdempotencyKeyReused` if that has another request.
        """
        record, size_bytes = new_job(request, recording, owner, text)
        record = replace(record, priority=options.priority, follow_ups=options.follow_ups)
        if key := options.key:
            digest = await asyncio.to_thread(_digest, request, recording, options.follow_ups)
            record = replace(record, id=id_of(owner, key), digest=digest)
        if record.id in self._arriving:
            raise Overloaded("The job with this Idempotency-Key is being stored; try again.", retry_after_s=1)
        self._arriving.add(record.id)
        try:
            if key and (known := await self._store.get(record.id, owner)) is not None:
                if known.digest != record.digest:
                    raise IdempotencyKeyReused("The job with this Idempotency-Key is another one: use a new key.")
                return known
            await self._store.add(record, recording, size_bytes)
        finally:
            self._arriving.remove(record.id)
        self._look.set()
        return replace(record, request=with_clips(request, repeat(b"")))

    async def get(self, identity: str, owner: str = "") -> JobRecord:
        """Return the job's record. Raises `JobNotFound`."""
        if (record := await self._store.get(identity, owner)) is None:
            raise _not_found()
        return record

    async def result(self, identity: str, owner: str = "") -> tuple[Result, Content]:
        """Return the job's answer, and its content, which the caller closes. Raises `JobNotFound` and `JobNotFinished`;
        the record says why a job failed."""
        record = await self.get(identity, owner)
        if record.result is None:
            raise _not_finished(record)
        return record.result, await self._store.content(identity)

    @asynccontextmanager
    async def transcript(
        self, identity: str, owner: str, caller: str
    ) -> AsyncIterator[tuple[JobRequest, Transcript | None]]:
        """Yield the job's request and the transcript that its result was made of, None if none is kept. Callers take
        turns, as a long transcript takes much of the memory.

        Raises `JobNotFound` and `JobNotFinished`.
        """
        record = await self.get(identity, owner)
        if record.result is None:
            raise _not_finished(record)
        async with self._reading.taken(caller):
            stored = await self._store.transcript(identity)
            yield record.request, await in_thread(transcript_loaded, stored) if stored else None

    async def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        """Yield the job's record, and again at every change, until the job is over or removed.

        Raises `JobNotFound`, and `ShuttingDown` if another server, or the next one, will answer for the job.
        """
        told: JobRecord | None = None
        async with aclosing(self._store.changes(await self.get(identity, owner))) as changes:
            async for record in changes:
                if record != told:
                    yield record
                told = record
                if record.state.over:
                    return
                if self._draining:
                    continues = "without it" if self._store.is_shared else "when it runs again"
                    raise ShuttingDown(f"The server is stopping; the job continues {continues}.")

    async def remove(self, identity: str, owner: str = "") -> None:
        """Remove a job. If it runs here it is cancelled at once, and elsewhere when that server renews its claim.

        Raises `JobNotFound`.
        """
        if not await self._store.remove(identity, owner, partial(self._stop, identity)):
            raise _not_found()

    async def cancel(self, identity: str, owner: str = "") -> JobRecord:
        """End a job that waits or runs without a result, and return its record; one that is over stays as it is.

        Raises `JobNotFound`.
        """
        if (record := await self._store.cancel(identity, owner, partial(self._stop, identity))) is None:
            raise _not_found()
        self.follow_ups.wake()
        return record

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
        """Run the next job. False if there is none for this server."""
        ends = self._draining or any(one.engine_failed for one in self._running.values())
        if ends and self._store.is_shared:  # others run it meanwhile
            return False
        claim = await self._store.claim([one.claim.record for one in self._running.values()])
        if claim is None:
            return False
        if claim.lost:
            logger.warning("job of a server that is gone", id=claim.id, times=claim.lost)
        with logger.contextualize(id=claim.id):
            task = asyncio.create_task(self._run(claim))
        self._running[claim.id] = _Running(claim, task, time.monotonic())
        task.add_done_callback(partial(self._over, claim.id))
        return True

    def _over(self, identity: str, task: asyncio.Task[None]) -> None:
        del self._running[identity]
        self._look.set()
        self.follow_ups.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("job ended unexpectedly", id=identity)

    async def _run(self, claim: Claim) -> None:
        work_for(claim.record.owner)
        began_s = time.monotonic()
        with suppress(ClaimLost):
            try:
                ended = await self._finished(claim)
            except OSError as error:
                failed = claim.record.failed(JobsUnavailable(f"STATE_DIR cannot be used ({error.strerror})."))
                ended = await self._end(claim, None, failed, None)
            ended.log(time.monotonic() - began_s)

    async def _finished(self, claim: Claim) -> JobRecord:
        """Do the job, and return its record as it is stored. Raises `OSError` and `ClaimLost`."""
        kind = kind_of(self._kinds, claim.record.request)
        if claim.lost > _MOST_LOST:
            error = kind.unexpected_error(f"{claim.lost} servers ended while they ran this job.")
            return await self._end(claim, None, claim.record.failed(error), None)
        async with self._store.files(claim) as files:
            run = JobRun(claim.record, files, self._limits.timeout_s, partial(self._report, claim.id))
            try:
                outcome = await process(kind, run)
            except (EngineFailed, ShuttingDown) as error:  # this process ends, and another one runs the job
                self._running[claim.id].engine_failed = isinstance(error, EngineFailed)
                await asyncio.Event().wait()
                raise
            except AsrError as error:
                return await self._end(claim, files, self._running[claim.id].claim.record.failed(error), None)
            ended = claim.record.succeeded(outcome.result, outcome.duration_s)
            return await self._end(claim, files, ended, outcome.content)

    async def _end(self, claim: Claim, files: JobFiles | None, ended: JobRecord, content: bytes | None) -> JobRecord:
        self._running[claim.id].is_ending = True
        ended = ended.ended(time.time())
        return await when_answered(partial(self._store.end, claim, files, ended, content))

    def _report(self, identity: str, progress: JobProgress) -> None:
        running = self._running[identity]
        record = replace(
            running.claim.record,
            done_s=progress.done_s,
            duration_s=progress.duration_s,
            done_characters=progress.done_characters,
        )
        running.claim, running.changed = replace(running.claim, record=record), True
        self._reported.set()

    async def _renew(self) -> None:
        """Renew all claims, with the progress of their jobs: at once where nobody else reads and writes the store."""
        while True:
            with suppress(JobsUnavailable):
                for identity, running in list(self._running.items()):
                    if running.changed or time.monotonic() - running.renewed_s >= _RENEW_S:
                        await self._renew_one(identity, running)
            if self._store.is_shared:
                await asyncio.sleep(_REPORT_S)
            else:
                await self._reported.wait()
                self._reported.clear()

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

    async def _stop(self, identity: str) -> None:
        if (running := self._running.get(identity)) is not None:
            if not running.is_ending:  # a thread may be writing the end, and would go on after what follows here
                running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)

    async def _sweep(self) -> None:
        """Remove jobs after their time."""
        while True:
            with suppress(JobsUnavailable):
                await self._store.expire()
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._limits.ttl_s)))


def _not_finished(record: JobRecord) -> JobNotFinished:
    return JobNotFinished(f"The job has no result: it is {record.state.value}.", param="job_id")


def _not_found() -> JobNotFound:
    return JobNotFound("There is no job of this id; finished ones are kept for JOB_TTL.", param="job_id")
