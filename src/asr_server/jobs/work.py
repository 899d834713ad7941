"""What both runners share: how a job begins, and what a kind of jobs does, from a stored input to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from io import SEEK_END
from typing import BinaryIO, ClassVar, Protocol, TypeVar

from loguru import logger

from asr_server.core.errors import AsrError, JobNotFound, JobsUnavailable, Overloaded
from asr_server.features.speech_output.requests import SpeechJobRequest
from asr_server.features.speech_output.spoken_parts import SpokenParts
from asr_server.jobs.record import JobRecord, JobRequest, clips, new_id
from asr_server.recordings.requests import Result

_RETRY_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """Seconds of audio that are done, and of all about, 0 if unknown; characters of a text that are spoken."""

    done_s: float
    duration_s: float
    done_characters: int = 0


class JobFiles(Protocol):
    """The files of jobs that run. All methods but the last wait for the disk and raise `OSError`."""

    def request(self, record: JobRecord) -> JobRequest:
        """The request of a job that is not over, with its clips."""

    def recording(self, identity: str) -> BinaryIO:
        """The uploaded file, or the stored text, open for reading."""

    def spoken_parts(self, identity: str) -> SpokenParts:
        """What is spoken already of a job that speaks."""

    def new_result(self, identity: str) -> BinaryIO:
        """An empty file for a result that is too large for memory. The caller closes it."""

    def keep_result(self, identity: str, written: BinaryIO) -> None:
        """The file of `new_result` is complete: it is the result."""

    async def keep_parts(self, identity: str, spoken: SpokenParts) -> None:
        """Finished parts are there for whichever server runs the job next."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job, in turn. `report` publishes its progress. `timeout_s`: how long it may take."""

    record: JobRecord
    store: JobFiles
    timeout_s: float
    report: Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """`content`: of the result, None if it is in the store already. `duration_s`: seconds of audio."""

    result: Result
    content: bytes | None
    duration_s: float


class JobWork(Protocol):
    """One kind of jobs. `unexpected_error`: what a job ends with after an exception that is no `AsrError`."""

    unexpected_error: ClassVar[type[AsrError]]

    async def process(self, run: JobRun) -> JobOutcome:
        """Raises `AsrError`, and `OSError` for the files of the job. Cancelling it stops all work; the same job may
        be processed again afterwards."""


@dataclass(frozen=True, slots=True)
class JobKinds:
    """What does the jobs, by what they are about."""

    recordings: JobWork
    speech: JobWork

    def of(self, request: JobRequest) -> JobWork:
        """That which does such jobs."""
        return self.speech if isinstance(request, SpeechJobRequest) else self.recordings

    async def process(self, run: JobRun) -> JobOutcome:
        """Do one job. Raises `AsrError`."""
        work = self.of(run.record.request)
        try:
            return await work.process(run)
        except AsrError:
            raise
        except OSError as error:
            raise JobsUnavailable(f"The files of the job cannot be read or written ({error.strerror}).") from error
        except Exception as error:  # a fault of one job must not end the loop that runs all of them
            logger.opt(exception=error).error("job failed unexpectedly", id=run.record.id)
            raise work.unexpected_error("The server failed on this job; its log has the details.") from error


@dataclass(frozen=True, slots=True)
class TextSize:
    """Of a text that a job speaks. `expected_bytes`: what its speech will take on the disk at most, about."""

    characters: int
    expected_bytes: int


def new_job(
    request: JobRequest, recording: BinaryIO, owner: str, text: TextSize | None = None
) -> tuple[JobRecord, int]:
    """The record of a job that is about to be accepted, and the bytes that it will take. `recording`: or the text, of
    that size."""
    record = JobRecord(new_id(), request, time.time(), owner=owner)
    if text is not None:
        record = replace(record, characters=text.characters, expected_bytes=text.expected_bytes)
    return record, recording.seek(0, SEEK_END) + sum(map(len, clips(request))) + record.expected_bytes


def not_found() -> JobNotFound:
    """The error for an id that no job of the caller's has."""
    return JobNotFound("There is no job of this id; finished ones are kept for JOB_TTL.", param="job_id")


async def when_there_is_room(work: Callable[[], Awaitable[T]]) -> T:
    """What `work` returns, when it is not refused as too much any more: a job has been accepted already, and waits for
    callers who wait for an answer."""
    while True:
        try:
            return await work()
        except Overloaded:
            await asyncio.sleep(_RETRY_S)
