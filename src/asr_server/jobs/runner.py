"""The kinds of jobs, recordings among them, and the runner of jobs.

The runner takes jobs from a store in turn, runs a few at a time, and answers requests about all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import SEEK_END, BytesIO
from itertools import repeat
from typing import Any, BinaryIO, ClassVar, Protocol, TypeVar, get_args
from weakref import WeakValueDictionary

import pydantic_core
from loguru import logger

from asr_server.core.errors import (
    AsrError,
    EngineFailed,
    InvalidInput,
    JobsUnavailable,
    Overloaded,
    ShuttingDown,
    TranscriptionFailed,
)
from asr_server.core.transcript import Transcript
from asr_server.jobs.database import CLIPS, RECORDING, RESULT
from asr_server.jobs.follow_ups import FollowUps, FollowUpSender
from asr_server.jobs.record import (
    FollowUp,
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
from asr_server.jobs.store import AT_ONCE, Claim, ClaimLost, JobStore
from asr_server.processes.caller_work import FairShares, current_caller, in_thread
from asr_server.recordings.pipeline import Emit, Event, RequestProcessor, RunOptions, SegmentDone, Started
from asr_server.recordings.requests import Request, Result, TranslationRequest
from asr_server.schedule.job import Priority

_RETRY_S = 1.0
_BLOCK_BYTES = 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job. Its files are closed at its end."""

    record: JobRecord
    request: JobRequest  # with the clips of known speakers
    recording: BinaryIO  # the uploaded file, or the stored text
    new_file: Callable[[], BinaryIO]  # opens an empty file. May block on the disk; raises `OSError`
    timeout_s: float  # of the whole run
    report: Callable[..., None]  # publishes progress: `done_s`, `duration_s` and `done_characters` of the record


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job."""

    result: Result
    content: BinaryIO  # of the result
    duration_s: float  # of the audio
    transcript: bytes = b""  # stored; other formats of the result are made from it


class JobKind(Protocol):
    """One kind of jobs."""

    request_types: ClassVar[tuple[type[JobRequest], ...]]
    unexpected_error: ClassVar[type[AsrError]]  # the job's error after an exception other than `AsrError`

    async def process(self, run: JobRun) -> JobOutcome:
        """Process the job. Raises `AsrError`, and `OSError` for the job's files. Cancelling stops all work; the same
        job may be processed again afterwards."""


class RecordingJobs:
    """Processes recordings as bulk work."""

    request_types: ClassVar[tuple[type[JobRequest], ...]] = get_args(Request)
    unexpected_error: ClassVar[type[AsrError]] = TranscriptionFailed

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    async def process(self, run: JobRun) -> JobOutcome:
        """Return the answer that the route would give. Raises the errors of `JobKind.process`."""
        request, owner = run.request, run.record.owner
        assert isinstance(request, Request)
        keeps = not isinstance(request, TranslationRequest)  # another format would need a new translation
        options = RunOptions(
            Priority.BULK,
            run.timeout_s,
            caller=owner,
            owner=owner,
            reports_gaps=request.reports_gaps,
            keeps_words=keeps,
        )
        work = partial(self._processor.process, run.recording, request, options, _reporting(run))
        result, transcript = await when_there_is_room(work)
        kept = await asyncio.to_thread(transcript_dumped, transcript) if keeps else b""
        return JobOutcome(replace(result, content=b""), BytesIO(result.content), transcript.duration_ms / 1000, kept)


def _reporting(run: JobRun) -> Emit:
    claimed_s = 0.0

    async def report(event: Event) -> None:
        nonlocal claimed_s
        if isinstance(event, Started):
            claimed_s = event.claimed_s
        elif isinstance(event, SegmentDone):
            done_s = event.segment.end_ms / 1000
            run.report(done_s=done_s, duration_s=max(done_s, claimed_s) if claimed_s else 0.0)

    return report


def _digest(request: JobRequest, recording: BinaryIO, follow_up: FollowUp | None) -> str:
    """Return a digest of the request, the URL of its follow-up and the recording."""
    digest = hashlib.sha256(pydantic_core.to_json(request, bytes_mode="base64", inf_nan_mode="constants"))
    if follow_up is not None:
        digest.update(follow_up.url.encode())
    recording.seek(0)
    while block := recording.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


async def unless_refused(refusal: type[AsrError], work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`, trying again as long as it raises `refusal`."""
    while True:
        try:
            return await work()
        except refusal:
            await asyncio.sleep(_RETRY_S)


# An accepted job waits until there is room: callers who wait for an answer go first.
when_there_is_room = partial(unless_refused, Overloaded)
# Waits until the database answers. If the claim is lost meanwhile, the run is cancelled.
when_answered = partial(unless_refused, JobsUnavailable)


# Pause between renewals of shared claims.
_RENEW_S = 1.0
# Pause between polls for jobs that another server left, for requests that are due and for a database that did not
# answer; and the time after which jobs are counted even if nothing woke the runner.
_LOOK_S, _COUNT_S = 1.0, 5.0
_SWEEP_S = 60.0
_RELEASE_S = 5.0
# A job that ended more servers or engines than this would end another, so it fails.
_MOST_LOST = 5
# A job whose engine failed is queued again after this pause, in which a process whose own engine failed ends. An engine
# process that is away refuses a job within the second time, and the job is not at fault.
_ENGINE_AWAY_S, _REFUSED_S = 30.0, 5.0


@dataclass(slots=True)
class _Running:
    """A job that runs here."""

    claim: Claim
    task: asyncio.Task[None]
    engine_failed: bool = False
    is_ending: bool = False  # its end is being stored


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Watch:
    """A job that somebody watches."""

    record: JobRecord | None = None  # None when it was removed
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, record: JobRecord | None) -> None:
        self.record = record
        self.changed.set()
        self.changed = asyncio.Event()


class JobRunner:
    """Accepts jobs, runs them, and answers requests about them. Used from the event loop.

    An owner finds only its own jobs. Every method raises `JobsUnavailable` while the store cannot be used.
    """

    def __init__(self, kinds: tuple[JobKind, ...], store: JobStore, sender: FollowUpSender | None = None) -> None:
        self._kinds, self._store = kinds, store
        self.is_shared = store.database.is_shared  # other servers have the same jobs
        self._look = asyncio.Event()  # set when there may be something to begin
        self.follow_ups = FollowUps(sender, store, self._look.set)
        # A text that has not been stored yet may take about 100 MiB of memory.
        self._arriving_texts, self._reading = FairShares(4, 4), FairShares(1, 2)
        self._running: dict[str, _Running] = {}
        self._watched = WeakValueDictionary[str, _Watch]()
        self._counted_s = -_COUNT_S
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = False

    @property
    def pending(self) -> int:
        """Count jobs that run here, wait for any server, or have ended with requests that this server has to send."""
        return len(self._running) + self.counts.get(RecordState.QUEUED, 0) + self.follow_ups.pending

    @property
    def counts(self) -> Mapping[RecordState, int]:
        """Count the jobs in each state; if they are shared, on all servers."""
        return self._store.counts

    async def start(self) -> None:
        """Start work, also on jobs that an earlier server left. Raises nothing: a missing database is tried again."""
        with suppress(JobsUnavailable):
            if await self._store.database.prepare():
                self._look.set()
        work = [self._begin_all(), self._sweep(), *([self._share()] if self.is_shared else [])]
        self._tasks += [asyncio.create_task(one) for one in work]

    def drain(self) -> None:
        """End all `watch` calls and begin no more jobs: the server is about to stop."""
        self._draining = True
        for watch in list(self._watched.values()):
            watch.publish(watch.record)

    async def close(self) -> None:
        """Stop. Jobs that are not finished run again, on the next server or on another."""
        running = list(self._running.values())
        tasks = [*self._tasks, *self.follow_ups.under_way, *(one.task for one in running)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        released = (self._store.release(one.claim, lost=one.engine_failed) for one in running)
        with suppress(TimeoutError):  # a claim that is not released ends with its lease
            async with asyncio.timeout(_RELEASE_S):
                await asyncio.gather(*released, return_exceptions=True)
        await self._store.database.close()

    async def check_room(self, owner: str = "", key: str = "") -> None:
        """Raise `Overloaded` if the owner, or all owners together, have too many jobs, unless a job with this `key`
        exists. Called before the recording arrives."""
        if key and await self._store.get(id_of(owner, key), owner) is not None:
            return
        self._store.limits.check_jobs(await self._store.unfinished(), owner)

    @asynccontextmanager
    async def room_for_text(self, owner: str = "", caller: str = "", key: str = "") -> AsyncIterator[None]:
        """Reserve memory for a text that has not arrived yet, until the block ends. `caller`: the owner, or an address.
        Raises `Overloaded` like `check_room`, and if too many texts are arriving."""
        await self.check_room(owner, key)
        refusal = Overloaded("Other long texts are arriving; try again.", retry_after_s=5)
        with self._arriving_texts.taken_now(caller or owner, refusal):
            yield

    async def add(
        self, request: JobRequest, recording: BinaryIO, owner: str = "", *, key: str = "", **fields: Any
    ) -> JobRecord:
        """Accept a job, or return the owner's job with this `Idempotency-Key` if it exists. `recording`: the recording
        or the text. `fields`: further fields of the record.

        Raises `Overloaded` if too many jobs wait or take too much space, or while the job with this key is being
        stored, and `idempotency_key_reused` if that job has a different request.
        """
        record = JobRecord(new_id(), request, time.time(), owner=owner, **fields)
        size_bytes = recording.seek(0, SEEK_END) + sum(map(len, clips(request))) + record.expected_bytes
        if key:
            digest = await asyncio.to_thread(_digest, request, recording, record.follow_up)
            record = replace(record, id=id_of(owner, key), digest=digest)
            if (known := await self._store.get(record.id, owner)) is not None:
                if known.digest != record.digest:
                    raise InvalidInput(
                        "The job with this Idempotency-Key is another one: use a new key.",
                        code="idempotency_key_reused",
                    )
                return known
        await self._store.add(record, recording, size_bytes)
        self._look.set()
        return replace(record, request=with_clips(request, repeat(b"")))

    async def get(self, identity: str, owner: str = "") -> JobRecord:
        """Return the job's record. Raises `job_not_found`."""
        if (record := await self._store.get(identity, owner)) is None:
            reason = "There is no job of this id; finished ones are kept for JOB_TTL."
            raise InvalidInput(reason, code="job_not_found", param="job_id")
        running = self._running.get(identity)
        return record if running is None or record.state.over else running.claim.record

    async def result(self, identity: str, owner: str = "") -> tuple[Result, int, AsyncGenerator[bytes, None]]:
        """Return the job's answer, and the size and the pieces of its content. Raises `job_not_found` and
        `job_not_finished`; the record says why a job failed."""
        _, result = await self._succeeded(identity, owner)
        return result, await self._store.size_bytes(identity), self._store.database.pieces(identity, RESULT)

    @asynccontextmanager
    async def transcript(
        self, identity: str, owner: str, caller: str
    ) -> AsyncIterator[tuple[JobRequest, Transcript | None]]:
        """Yield the job's request and the transcript that its result was made from, or None if no transcript is kept.
        Callers take turns: a long transcript takes much memory.

        Raises `job_not_found` and `job_not_finished`.
        """
        request, _ = await self._succeeded(identity, owner)
        async with self._reading.taken(caller):
            stored = await self._store.transcript(identity)
            yield request, await in_thread(transcript_loaded, stored) if stored else None

    async def _succeeded(self, identity: str, owner: str) -> tuple[JobRequest, Result]:
        record = await self.get(identity, owner)
        if record.result is None:
            reason = f"The job has no result: its status is {record.state.value}."
            raise InvalidInput(reason, code="job_not_finished", param="job_id")
        return record.request, record.result

    async def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        """Yield the job's record now and at every change, until the job is over or removed.

        Raises `job_not_found`, and `ShuttingDown` if this server stops while the job continues elsewhere or later.
        """
        told, watch = None, self._watched.setdefault(identity, _Watch())
        changed = watch.changed
        found = await self.get(identity, owner)
        if watch.changed is changed:  # otherwise a newer record has been published
            watch.publish(found)
        while (record := watch.record) is not None:
            changed = watch.changed
            if record != told:
                yield record
            told = record
            if record.state.over:
                return
            if self._draining:
                raise ShuttingDown("The server is stopping; the job runs at another one, or when it starts again.")
            await changed.wait()

    async def remove(self, identity: str, owner: str = "") -> None:
        """Remove a job. A run on this server is cancelled at once, a run on another when that server renews its claim.

        Raises `job_not_found`.
        """
        await self.get(identity, owner)
        await self._stop(identity)
        try:
            await self._store.remove(identity, owner)
        finally:
            self._look.set()
        self._tell(identity, None)

    async def cancel(self, identity: str, owner: str = "") -> JobRecord:
        """Cancel a waiting or running job, which then has no result. Return its record. A finished job is unchanged.

        Raises `job_not_found`.
        """
        cancelled = replace(await self.get(identity, owner), state=RecordState.CANCELLED, ended_at=time.time())
        if not await self._store.cancel(cancelled):
            return await self.get(identity, owner)
        await self._stop(identity)
        self._tell(identity, cancelled)
        return cancelled

    def _tell(self, identity: str, record: JobRecord | None) -> None:
        """Publish the record to watchers. If the job is over or removed, look for the next one."""
        if watch := self._watched.get(identity):
            watch.publish(record)
        if record is None or record.state.over:
            self._look.set()

    async def _begin_all(self) -> None:
        """Begin jobs, and requests about ended jobs, whenever there may be some. If the store is not shared, only this
        server adds jobs, so it need not poll for them."""
        while True:
            looks_again = self.is_shared or self._store.database.reason or self.follow_ups.pending
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if looks_again else None):
                    await self._look.wait()
            is_woken = self._look.is_set()
            self._look.clear()
            with suppress(JobsUnavailable):
                while len(self._running) < AT_ONCE and await self._take_one():
                    pass
                await self.follow_ups.begin_due()
                # If the store is not shared, every job that is added or ends wakes this loop.
                if (is_woken and not self.is_shared) or time.monotonic() - self._counted_s >= _COUNT_S:
                    await self._store.count()
                    self._counted_s = time.monotonic()

    async def _take_one(self) -> bool:
        """Start the next job. Return False if there is none for this server."""
        if self._draining or any(one.engine_failed for one in self._running.values()):  # another server runs it
            return False
        if (claim := await self._store.claim(time.time())) is None:
            return False
        if claim.lost:
            logger.warning("job of a server that is gone", id=claim.id, times=claim.lost)
        with logger.contextualize(id=claim.id):
            task = asyncio.create_task(self._run(claim))
        self._running[claim.id] = _Running(claim, task)
        task.add_done_callback(partial(self._over, claim.id))
        self._tell(claim.id, claim.record)
        return True

    def _over(self, identity: str, task: asyncio.Task[None]) -> None:
        del self._running[identity]
        self._look.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("job ended unexpectedly", id=identity)

    async def _run(self, claim: Claim) -> None:
        current_caller.set(claim.record.owner)
        began_s = time.monotonic()
        with suppress(ClaimLost), ExitStack() as files:
            ended = await self._finished(claim, files)
            self._tell(claim.id, ended)
            logger.info(
                "job",
                id=ended.id,
                outcome=ended.error.code if ended.error else ended.state.value,
                audio_s=round(ended.duration_s, 3),
                waited_s=round(max(0.0, ended.started_at - ended.created_at), 3),
                took_s=round(time.monotonic() - began_s, 3),
            )

    async def _finished(self, claim: Claim, files: ExitStack) -> JobRecord:
        """Run the job, and return its record as it is stored. Raises `ClaimLost`."""
        kind = next(kind for kind in self._kinds if isinstance(claim.record.request, kind.request_types))
        if claim.lost > _MOST_LOST:
            error = kind.unexpected_error(f"{claim.lost} servers or engines ended while they ran this job.")
            return await self._end(claim, claim.record.failed(error))
        failure: AsrError
        began_s = time.monotonic()
        try:
            outcome = await kind.process(await self._opened(claim, files))
        except ShuttingDown:  # this process ends; another runs the job
            await asyncio.Event().wait()
            raise
        except EngineFailed:
            self._running[claim.id].engine_failed = True
            is_lost = time.monotonic() - began_s > _REFUSED_S
            await asyncio.sleep(_ENGINE_AWAY_S)
            await when_answered(partial(self._store.release, claim, lost=is_lost))
            raise ClaimLost from None
        except AsrError as error:
            failure = error
        except OSError as error:
            failure = JobsUnavailable(f"The files of the job cannot be read or written ({error.strerror}).")
        except Exception as error:  # a bug must not leave the job claimed without an end
            logger.opt(exception=error).error("job failed unexpectedly", id=claim.id)
            failure = kind.unexpected_error("The server failed on this job; its log has the details.")
        else:
            ended = claim.record.succeeded(outcome.result, outcome.duration_s)
            return await self._end(claim, ended, outcome.content, outcome.transcript)
        return await self._end(claim, self._running[claim.id].claim.record.failed(failure))

    async def _opened(self, claim: Claim, files: ExitStack) -> JobRun:
        """Open the files of a job. Raises `OSError`."""
        database, record = self._store.database, claim.record
        recording, *voices = [
            files.enter_context(await when_answered(partial(database.open, claim.id, name)))
            for name in (RECORDING, *CLIPS[: len(clips(record.request))])
        ]
        return JobRun(
            record,
            with_clips(record.request, [voice.read() for voice in voices]),
            recording,
            lambda: files.enter_context(tempfile.TemporaryFile(dir=database.directory)),
            self._store.limits.timeout_s,
            partial(self._report, claim.id),
        )

    async def _end(
        self, claim: Claim, ended: JobRecord, content: BinaryIO | None = None, transcript: bytes = b""
    ) -> JobRecord:
        self._running[claim.id].is_ending = True
        ended = replace(ended, ended_at=time.time())
        return await when_answered(partial(self._store.end, claim, ended, content, transcript))

    def _report(self, identity: str, **progress: Any) -> None:
        running = self._running[identity]
        record = replace(running.claim.record, **progress)
        running.claim = replace(running.claim, record=record)
        self._tell(identity, record)

    async def _share(self) -> None:
        """Renew all claims, which stores the progress of their jobs, and read the watched jobs that do not run here."""
        while True:
            with suppress(JobsUnavailable):
                for running in list(self._running.values()):
                    await self._renew(running.claim)
                if elsewhere := set(self._watched) - self._running.keys():
                    found = await self._store.records(elsewhere)
                    for identity in elsewhere - self._running.keys():
                        self._tell(identity, found.get(identity))
            await asyncio.sleep(_RENEW_S)

    async def _renew(self, claim: Claim) -> None:
        try:
            await self._store.renew(claim)
        except ClaimLost:
            if claim.id in self._running:  # it did not end meanwhile
                logger.warning("job was removed, or taken over by another server", id=claim.id)
                await self._stop(claim.id)

    async def _stop(self, identity: str) -> None:
        """Cancel the run of a job if it runs here. If its end is already being stored, wait for that instead."""
        if (running := self._running.get(identity)) is not None:
            if not running.is_ending:
                running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)

    async def _sweep(self) -> None:
        """Remove jobs whose time is over."""
        while True:
            if self.is_shared or self.counts:
                with suppress(JobsUnavailable):
                    await self._store.expire()
                    self._look.set()  # count the remaining jobs
            await asyncio.sleep(min(_SWEEP_S, max(1.0, self._store.limits.ttl_s)))
