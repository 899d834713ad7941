"""A job as it is kept and shown: its state, its progress, how it ended. Frozen; not where it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from asr_server.core.errors import AsrError
from asr_server.service.processor import Request


class JobState(StrEnum):
    """Where a job is in its life."""

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
    """Why a job failed, in the words of the error table."""

    code: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: AsrError) -> JobError:
        """What is kept of an error."""
        return cls(error.code, error.message, error.param)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job. Times are Unix seconds, 0 for not yet.

    `done_s`: seconds of the recording whose text is there; `duration_s`: what the recording claims to last, later what
    it lasts, 0 while unknown. `media_type` and `notes` are those of the result. `owner`: whose key made it, "" where
    there was none.
    """

    id: str
    request: Request
    created_at: float
    state: JobState = JobState.QUEUED
    started_at: float = 0.0
    ended_at: float = 0.0
    done_s: float = 0.0
    duration_s: float = 0.0
    media_type: str = ""
    notes: dict[str, str] = field(default_factory=dict)
    owner: str = ""
    error: JobError | None = None

    def queued_again(self) -> JobRecord:
        """The same job before it ran: what was begun by a server that is gone begins anew."""
        return replace(self, state=JobState.QUEUED, started_at=0.0, done_s=0.0, duration_s=0.0)
