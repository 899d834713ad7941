"""The events of one recording, as a batch gets them from a backend: a server, or a worker of `--local`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from asr_server.features.alignments.requests import AlignmentRequest
from asr_server.recordings.requests import Request


@dataclass(frozen=True, slots=True)
class JobAccepted:
    """The first event: the server has created this job and works on it, whether or not anybody waits."""

    job: str  # its id


@dataclass(frozen=True, slots=True)
class RecordingDuration:
    """The length of the recording."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RecordingProgress:
    """The recording is transcribed up to this time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AnswerText:
    """New text of the answer."""

    text: str  # to be appended to all before it


@dataclass(frozen=True, slots=True)
class BackendResult:
    """The last event."""

    content: str  # after `AnswerText`s only what ends the text
    notes: tuple[str, ...] = ()  # for the user
    duration_s: float | None = None  # the length of the recording, None if it is not known


Event = JobAccepted | RecordingDuration | RecordingProgress | AnswerText | BackendResult


class Backend(Protocol):
    """`process` may run for many recordings at once."""

    def process(self, recording: BinaryIO, request: Request | AlignmentRequest) -> AsyncGenerator[Event, None]:
        """Return the events of one recording, which is a file on disk. Raises `Failure`, `NoServer` and
        `UsageError`."""

    async def forget(self, job: str) -> None:
        """Remove a job whose result has been delivered."""
