"""Kinds of jobs, of which recordings are one: each makes a result of a stored input. How a job begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from io import SEEK_END
from typing import BinaryIO, ClassVar, Protocol, TypeVar, get_args

from loguru import logger

from asr_server.core.errors import AsrError, JobsUnavailable, Overloaded, TranscriptionFailed
from asr_server.jobs.record import JobRecord, JobRequest, clips, new_id
from asr_server.jobs.store import JobFiles
from asr_server.recordings.pipeline import Emit, Event, RequestProcessor, RunOptions, SegmentDone, Started
from asr_server.recordings.requests import Request, Result
from asr_server.schedule.job import Priority

_RETRY_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
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
    report: Callable[[Progress], None]  # publishes its progress


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
        options = RunOptions(Priority.BULK, run.timeout_s, caller=record.owner, owner=record.owner)
        request = await asyncio.to_thread(run.store.request, record)
        assert isinstance(request, Request)
        with run.store.recording(record.id) as recording:
            work = partial(self._processor.process, recording, request, options, _reporting(run))
            result, transcript = await when_there_is_room(work)
        return JobOutcome(replace(result, content=b""), result.content, transcript.duration_ms / 1000)


def _reporting(run: JobRun) -> Emit:
    claimed_s = 0.0

    async def report(event: Event) -> None:
        nonlocal claimed_s
        if isinstance(event, Started):
            claimed_s = event.claimed_s
        elif isinstance(event, SegmentDone):
            done_s = event.segment.end_ms / 1000
            run.report(Progress(done_s, max(done_s, claimed_s) if claimed_s else 0.0))

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


def new_job(
    request: JobRequest, recording: BinaryIO, owner: str, text: TextSize | None = None
) -> tuple[JobRecord, int]:
    """The record of a job that is about to be accepted, and the bytes that it will take. `recording`: or the text, of
    that size."""
    record = JobRecord(new_id(), request, time.time(), owner=owner)
    if text is not None:
        record = replace(record, characters=text.characters, expected_bytes=text.expected_bytes)
    return record, recording.seek(0, SEEK_END) + sum(map(len, clips(request))) + record.expected_bytes


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
