"""The record of a job: its request, state, progress and outcome, and how it is stored as JSON."""

from __future__ import annotations

import base64
import hashlib
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, repeat
from typing import Annotated, Any, Protocol, Union

import pydantic_core
from pydantic import GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from asr_server.core.errors import AsrError
from asr_server.core.transcript import Transcript
from asr_server.recordings.requests import RecordingRequest, Result


class JobRequest(Protocol):
    """A caller's request: a dataclass that belongs to one kind of job and is stored with the job."""

    @property
    def task(self) -> str:
        """The name by which a stored request is recognised."""


def new_id() -> str:
    return f"job_{secrets.token_urlsafe(18)}"


def id_of(owner: str, key: str) -> str:
    """Return the id of the owner's job with this `Idempotency-Key`. A key has one id, so a store has one such job."""
    digest = hashlib.sha256(f"{owner}\0{key}".encode()).digest()
    return f"job_{base64.urlsafe_b64encode(digest[:18]).decode()}"


def clips(request: JobRequest) -> list[bytes]:
    return list(request.known_speaker_references) if isinstance(request, RecordingRequest) else []


def with_clips(request: JobRequest, audio_files: Iterable[bytes]) -> JobRequest:
    """Return the request with these audio files as the clips of its known speakers."""
    if not isinstance(request, RecordingRequest):
        return request
    return replace(request, known_speaker_references=tuple(islice(audio_files, len(request.known_speaker_names))))


class RecordState(StrEnum):
    """The states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        return self not in (RecordState.QUEUED, RecordState.RUNNING)


@dataclass(frozen=True, slots=True)
class JobError:
    """The reason why a job failed."""

    code: str
    message: str
    param: str | None = None


class JobPriority(StrEnum):
    """The priority of a job among its owner's jobs."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def rank(self) -> int:
        return list(JobPriority).index(self)


class FollowUpState(StrEnum):
    """The states of a request that is sent when a job has ended."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class FollowUp:
    """A request that is sent when a job has ended."""

    field: str  # the field of the caller's request that names the URL
    url: str
    state: FollowUpState = FollowUpState.WAITING
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job. Times are Unix seconds; 0 means not yet."""

    id: str
    # Stored without the clips of known speakers, which are separate files. `RecordFormat` knows its types.
    request: Annotated[JobRequest, GetPydanticSchema(lambda source, handler: core_schema.any_schema())]
    created_at: float
    state: RecordState = RecordState.QUEUED
    started_at: float = 0.0
    ended_at: float = 0.0
    done_s: float = 0.0  # seconds of the recording done so far, or of speech generated so far
    duration_s: float = 0.0  # claimed by the recording, or estimated for speech; exact at the end; 0: unknown
    owner: str = ""  # the owner of the key that created the job, "" without keys
    result: Result | None = None  # without its content, which is a separate file
    error: JobError | None = None
    characters: int = 0  # of a text that is spoken
    done_characters: int = 0
    expected_bytes: int = 0  # an estimate of the disk space that speaking a text will take
    digest: str = ""  # of the request and the recording; "" without an `Idempotency-Key`
    priority: JobPriority = JobPriority.NORMAL
    follow_up: FollowUp | None = None

    def queued_again(self) -> JobRecord:
        return replace(self, state=RecordState.QUEUED, started_at=0.0, done_s=0.0, duration_s=0.0, done_characters=0)

    def succeeded(self, result: Result, duration_s: float) -> JobRecord:
        return replace(
            self,
            state=RecordState.SUCCEEDED,
            done_s=duration_s,
            duration_s=duration_s,
            done_characters=self.characters,
            result=result,
        )

    def failed(self, error: AsrError) -> JobRecord:
        return replace(
            self, state=RecordState.FAILED, result=None, error=JobError(error.code, error.message, error.param)
        )


# The exceptions that `RecordFormat.loaded` raises for a damaged record.
DAMAGED = (ValueError, TypeError, AttributeError, KeyError)
# Increase this if older servers would misread a record. They leave such jobs to newer servers.
VERSION = 5

_stored_records = TypeAdapter(JobRecord)
_stored_transcripts = TypeAdapter(Transcript)


def transcript_dumped(transcript: Transcript) -> bytes:
    """Return the stored form of a transcript, without the probabilities of its tokens. An hour of audio takes 0.1 s."""
    segments = tuple(replace(segment, spoken=()) for segment in transcript.segments)
    return zlib.compress(pydantic_core.to_json(replace(transcript, segments=segments), inf_nan_mode="constants"), 1)


def transcript_loaded(stored: bytes) -> Transcript:
    """Return a stored transcript. Raises `ValueError` or `zlib.error` for anything else."""
    return _stored_transcripts.validate_python(pydantic_core.from_json(zlib.decompress(stored)))


class RecordFormat:
    """Writes and reads records whose requests are of these types, which differ in their `task`."""

    def __init__(self, request_types: Iterable[type[JobRequest]]) -> None:
        union: Any = Union[tuple(request_types)]  # noqa: UP007 - the types are known only at run time
        self._requests: TypeAdapter[JobRequest] = TypeAdapter(union)

    def dumped(self, record: JobRecord) -> str:
        """Return the record as JSON, without the clips of known speakers, which are separate files."""
        record = replace(record, request=with_clips(record.request, repeat(b"")))
        return pydantic_core.to_json(record, inf_nan_mode="null").decode()

    def loaded(self, stored: str) -> JobRecord:
        """Return a stored record. Raises the exceptions in `DAMAGED`."""
        record = _stored_records.validate_python(pydantic_core.from_json(stored))
        return replace(record, request=self._requests.validate_python(record.request))
