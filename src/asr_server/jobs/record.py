"""The record of a job: its request, state, progress and outcome."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from loguru import logger

from asr_server.core.errors import AsrError
from asr_server.features.speech_output.requests import SpeechJobRequest
from asr_server.recordings.requests import Request, Result

_ID = re.compile(r"job_[A-Za-z0-9_-]{24}")

JobRequest = Request | SpeechJobRequest


def new_id() -> str:
    """Return an id that cannot be guessed."""
    return f"job_{secrets.token_urlsafe(18)}"


def is_id(name: str) -> bool:
    """Whether `new_id` may have made it."""
    return _ID.fullmatch(name) is not None


def clips(request: JobRequest) -> list[bytes]:
    """The audio files of the speakers that the request names."""
    if isinstance(request, SpeechJobRequest) or request.speakers is None:
        return []
    return [speaker.clip for speaker in request.speakers.known]


def with_clips(request: JobRequest, audio_files: Iterable[bytes]) -> JobRequest:
    """The request with other audio files of the speakers that it names."""
    if isinstance(request, SpeechJobRequest) or request.speakers is None:
        return request
    pairs = zip(request.speakers.known, audio_files, strict=False)
    known = tuple(replace(speaker, clip=clip) for speaker, clip in pairs)
    return replace(request, speakers=replace(request.speakers, known=known))


class JobState(StrEnum):
    """The states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (JobState.SUCCEEDED, JobState.FAILED)


@dataclass(frozen=True, slots=True)
class JobError:
    """The reason why a job failed."""

    code: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: AsrError) -> JobError:
        """Return the parts of an error that are stored."""
        return cls(error.code, error.message, error.param)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job. Times are Unix seconds, 0 for not yet. `request`: without the clips of known speakers, which are files.

    `expires_at`: when it is removed, where that does not follow from `ended_at`.

    `done_s`: seconds of the recording that are transcribed, or of speech that are made. `duration_s`: how long the
    recording says that it is, or about how long the speech will be; at the end how long it is; 0 if unknown.
    `characters`, `done_characters`: of a text, and how many of them are spoken. `expected_bytes`: what its speech will
    take on the disk, about. `owner`: whose key created the job, "" without keys. `result`: without its content, which
    is a file of its own.
    """

    id: str
    request: JobRequest
    created_at: float
    state: JobState = JobState.QUEUED
    started_at: float = 0.0
    ended_at: float = 0.0
    done_s: float = 0.0
    duration_s: float = 0.0
    owner: str = ""
    result: Result | None = None
    error: JobError | None = None
    expires_at: float = 0.0
    characters: int = 0
    done_characters: int = 0
    expected_bytes: int = 0

    def queued_again(self) -> JobRecord:
        """The same job before it ran. For jobs that were running when an earlier server ended."""
        return replace(self, state=JobState.QUEUED, started_at=0.0, done_s=0.0, duration_s=0.0, done_characters=0)

    def succeeded(self, result: Result, duration_s: float) -> JobRecord:
        """Return the job with its result."""
        return replace(
            self,
            state=JobState.SUCCEEDED,
            done_s=duration_s,
            duration_s=duration_s,
            done_characters=self.characters,
            result=result,
        )

    def failed(self, error: AsrError) -> JobRecord:
        """Return the job with the reason why it has no result."""
        return replace(self, state=JobState.FAILED, result=None, error=JobError.of(error))

    def log(self, took_s: float) -> None:
        """Log the end of the job. `took_s`: the time of its last run."""
        logger.info(
            "job",
            id=self.id,
            outcome=self.error.code if self.error else "ok",
            audio_s=round(self.duration_s, 3),
            waited_s=round(max(0.0, self.started_at - self.created_at), 3),
            took_s=round(took_s, 3),
        )
