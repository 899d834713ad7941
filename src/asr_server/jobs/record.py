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
    """A caller's request: a dataclass of one of the kinds of jobs, with which the job is stored."""

    @property
    def task(self) -> str:
        """The name by which a stored request is recognised."""


def new_id() -> str:
    return f"job_{secrets.token_urlsafe(18)}"


def id_of(owner: str, key: str) -> str:
    """Return the id of the owner's job with this `Idempotency-Key`: a store cannot have two of them."""
    digest = hashlib.sha256(f"{owner}\0{key}".encode()).digest()
    return f"job_{base64.urlsafe_b64encode(digest[:18]).decode()}"


def clips(request: JobRequest) -> list[bytes]:
    return list(request.known_speaker_references) if isinstance(request, RecordingRequest) else []


def with_clips(request: JobRequest, audio_files: Iterable[bytes]) -> JobRequest:
    """The request with other audio files of the speakers that it names."""
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

    field: str  # of the caller's request, that names the URL
    url: str
    state: FollowUpState = FollowUpState.WAITING
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job. Times are Unix seconds, 0 for not yet."""

    id: str
    # Without the clips of known speakers, which are files. Its kind says how it is read.
    request: Annotated[JobRequest, GetPydanticSchema(lambda source, handler: core_schema.any_schema())]
    created_at: float
    state: RecordState = RecordState.QUEUED
    started_at: float = 0.0
    ended_at: float = 0.0
    done_s: float = 0.0  # seconds of the recording that are done, or of audio that are made
    duration_s: float = 0.0  # of the recording as it says, or of the audio as expected; at the end as it is; 0: unknown
    owner: str = ""  # the owner of the key that created the job, "" without keys
    result: Result | None = None  # without its content, which is a file of its own
    error: JobError | None = None
    characters: int = 0  # of a text
    done_characters: int = 0
    expected_bytes: int = 0  # that the result of a text will take on the disk, about
    digest: str = ""  # of the request and the recording, where the caller gave an `Idempotency-Key`
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


# The exceptions of `RecordFormat.loaded` for a record that is no record.
DAMAGED = (ValueError, TypeError, AttributeError, KeyError)
# Changes when older servers would misread a record: they leave the job to newer ones.
VERSION = 5

_stored_records = TypeAdapter(JobRecord)
_stored_transcripts = TypeAdapter(Transcript)


def transcript_dumped(transcript: Transcript) -> bytes:
    """Return a transcript as it is stored, without the probabilities of its tokens. An hour takes 0.1 s."""
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
        """Return the record as it is stored: without the clips of known speakers, which are stored beside it."""
        record = replace(record, request=with_clips(record.request, repeat(b"")))
        return pydantic_core.to_json(record, inf_nan_mode="null").decode()

    def loaded(self, stored: str) -> JobRecord:
        """Raises the exceptions of `DAMAGED`."""
        record = _stored_records.validate_python(pydantic_core.from_json(stored))
        return replace(record, request=self._requests.validate_python(record.request))
