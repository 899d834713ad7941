"""`/v1/jobs`: recordings processed in the background. A client posts one, watches its progress and fetches the result.

Long texts are jobs too (`speech_jobs.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile

from asr_server.core.errors import InvalidInput
from asr_server.core.transcript import UnheardReason
from asr_server.jobs.record import FollowUpState, JobPriority, JobRecord
from asr_server.net import body, event_stream
from asr_server.net.errors import ErrorBody, ErrorDetail, content, error_object
from asr_server.recordings import forms
from asr_server.recordings.requests import RecordingRequest, ResponseFormat, SubtitleRequest, TranscriptionRequest
from asr_server.recordings.requests import Request as AnyRequest
from asr_server.recordings.route import headers_of
from asr_server.services import CallerDep, Services, ServicesDep


class JobTask(StrEnum):
    """The task of a job, which produces the same as the route of that name."""

    TRANSCRIPTION = "transcription"
    SUBTITLES = "subtitles"
    TRANSLATION = "translation"


class JobForm(BaseModel):
    """`POST /v1/jobs` as `/docs` shows it. With another task, the fields are those of its route."""

    task: JobTask = Field(
        JobTask.TRANSCRIPTION, description="What the job produces. The fields are those of the route."
    )
    priority: JobPriority = Field(
        JobPriority.NORMAL, description="Its place among the waiting jobs of the same key; other keys notice nothing."
    )


class JobProgressBody(BaseModel):
    """The progress of a job."""

    done_s: float = Field(description="Seconds of the recording whose text is there, or of speech that are made.")
    duration_s: float | None = Field(
        description="Seconds that the recording lasts, once that is known; of speech an estimate until the end."
    )
    fraction: float | None = Field(description="The one over the other, 0 to 1.")
    done_characters: int | None = Field(None, description="Of a text that is spoken: how many are.")
    characters: int | None = Field(None, description="How many it has.")


class FollowUpBody(BaseModel):
    """A request that is sent when a job has ended."""

    model_config = ConfigDict(from_attributes=True)

    field: str = Field(description="The field that named its URL.")
    state: FollowUpState = Field(description="`failed`: it was given up.")
    attempts: int


class JobBody(BaseModel):
    """One job. Times are Unix seconds."""

    id: str
    object: Literal["job"] = "job"
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    priority: JobPriority
    created_at: int
    started_at: int | None
    ended_at: int | None
    progress: JobProgressBody
    error: ErrorDetail | None = Field(description="Why it failed.")
    follow_ups: list[FollowUpBody] = Field(description="The requests that are sent when it has ended.")


class JobDeletedBody(BaseModel):
    """A job is gone."""

    id: str
    object: Literal["job"] = "job"
    deleted: bool = True


_BUILDERS: dict[str, Callable[[FormData], AnyRequest]] = {
    JobTask.TRANSCRIPTION: forms.transcription_request,
    JobTask.SUBTITLES: forms.subtitle_request,
    JobTask.TRANSLATION: forms.translation_request,
}
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_MAX_KEY_CHARS = 255
KEY_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Sent again with the same recording and options, it answers with the job that was accepted before.",
    "schema": {"type": "string", "maxLength": _MAX_KEY_CHARS},
}
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody}}


@router.post(
    "",
    status_code=202,
    response_model=JobBody,
    responses={**forms.ERRORS, 422: {"model": ErrorBody}},
    openapi_extra=forms.request_schema(TranscriptionRequest, JobForm) | {"parameters": [KEY_PARAMETER]},
)
async def create_job(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Accept a recording that is processed when there is time. The form is that of `/v1/audio/transcriptions`, or, with
    `task` subtitles or translation, that of those routes."""
    key = idempotency_key(request)
    await services.jobs.check_room(caller.owner, key)
    async with forms.read(request, services) as form:
        wanted, file = _parse(form, services)
        fields = job_fields(body.scalars(form, frozenset({services.jobs.follow_ups.field, "priority"})), services)
        record = await services.jobs.add(wanted, file.file, caller.owner, key=key, **fields)
    return accepted(record)


def idempotency_key(request: Request) -> str:
    """Return the `Idempotency-Key` of a request that creates a job, "" for none. Raises `invalid_value`."""
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > _MAX_KEY_CHARS:
        raise InvalidInput(f"An Idempotency-Key has at most {_MAX_KEY_CHARS} characters.", param="Idempotency-Key")
    return key


def job_fields(values: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """Return the record fields that callers can set for every kind of job. `values`: the fields of the request. Raises
    `InvalidInput`."""
    try:
        priority = JobPriority(values.get("priority") or JobPriority.NORMAL)
    except ValueError:
        raise InvalidInput(f"'priority' must be one of {', '.join(JobPriority)}.", param="priority") from None
    return {"priority": priority, "follow_up": services.jobs.follow_ups.asked(values)}


_RESULT: dict[str, Any] = {
    "description": "The body in the format asked for; audio of a text.",
    # Bytes come first: many generated clients use the first type for every answer, and bytes lose nothing.
    **content({"audio/*": "", "text/plain": "", "application/json": ""}),
}


@router.get("/{job_id}", response_model=JobBody, responses=_MISSING)
async def retrieve_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """Return the state of a job."""
    return JSONResponse(job_body(await services.jobs.get(job_id, caller.owner)))


@router.get(
    "/{job_id}/result",
    response_class=Response,
    responses={**_MISSING, 400: {"model": ErrorBody}, 409: {"model": ErrorBody}, 200: _RESULT},
)
async def job_result(
    job_id: str,
    services: ServicesDep,
    caller: CallerDep,
    response_format: ResponseFormat | None = None,
    return_timestamps: bool = False,
) -> Response:
    """Return the answer of a job, for `JOB_TTL` seconds. A recording's answer is available in any format, as if
    `response_format` and `return_timestamps` had been fields of its request."""
    if response_format is None:
        result, size_bytes, pieces = await services.jobs.result(job_id, caller.owner)
        headers = {**headers_of(result), "Content-Length": str(size_bytes)}
        return StreamingResponse(pieces, media_type=result.media_type, headers=headers)
    async with services.jobs.transcript(job_id, caller.owner, caller.share) as (request, transcript):
        if transcript is None or not isinstance(request, TranscriptionRequest | SubtitleRequest):
            raise InvalidInput(
                "The result of this job has only one format.", code="unsupported_value", param="response_format"
            )
        if response_format is ResponseFormat.DIARIZED_JSON and not request.speakers:
            raise InvalidInput(
                "The job did not distinguish speakers.", code="unsupported_value", param="response_format"
            )
        request = _in_format(request, response_format, return_timestamps=return_timestamps)
        if not request.reports_gaps and any(part.reason is UnheardReason.FAILED for part in transcript.coverage):
            raise InvalidInput(
                "A part of the recording failed, which only verbose_json reports.",
                code="unsupported_value",
                param="response_format",
            )
        services.check(request)
        result = await services.processor.answer(transcript, request, services.settings.request_timeout)
    return Response(result.content, headers=headers_of(result), media_type=result.media_type)


@router.get(
    "/{job_id}/events",
    response_class=Response,
    responses={
        **_MISSING,
        200: {
            "description": "The state of the job, and again at every change, until it is over.",
            **content({"text/event-stream": 'data: {"id": "job_...", "status": "running", ...}\n\n'}),
        },
    },
)
async def job_events(request: Request, job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """Stream the progress of a job as server-sent events."""

    async def watch(emit: Callable[[JobRecord], Awaitable[None]]) -> None:
        async with aclosing(services.jobs.watch(job_id, caller.owner)) as changes:
            async for record in changes:
                await emit(record)

    return await event_stream.respond(request, watch, lambda record: [event_stream.frame(job_body(record))])


@router.post("/{job_id}/cancel", response_model=JobBody, responses=_MISSING)
async def cancel_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """End a job that waits or runs, without a result. Its state is kept as that of others; one that is over stays as it
    is."""
    return JSONResponse(job_body(await services.jobs.cancel(job_id, caller.owner)))


@router.delete("/{job_id}", responses=_MISSING)
async def delete_job(job_id: str, services: ServicesDep, caller: CallerDep) -> JobDeletedBody:
    """Cancel a job if it runs, and remove it with its recording and its result."""
    await services.jobs.remove(job_id, caller.owner)
    return JobDeletedBody(id=job_id)


def _in_format(
    request: TranscriptionRequest | SubtitleRequest, answer: ResponseFormat, *, return_timestamps: bool
) -> TranscriptionRequest | SubtitleRequest:
    """Return the request that gives the answer for the same recording in another format."""
    if isinstance(request, SubtitleRequest) and answer.is_subtitles:
        return replace(request, format="vtt" if answer is ResponseFormat.VTT else "srt")
    options = {one.name: getattr(request, one.name) for one in fields(RecordingRequest)}
    if isinstance(request, TranscriptionRequest):
        options["timestamp_granularities"] = request.timestamp_granularities
        return_timestamps |= request.return_timestamps
    return TranscriptionRequest(**options, response_format=answer, return_timestamps=return_timestamps)


def _parse(form: FormData, services: Services) -> tuple[AnyRequest, UploadFile]:
    task = body.scalars(form, frozenset({"task"})).get("task", JobTask.TRANSCRIPTION)
    if task not in _BUILDERS:
        raise InvalidInput(f"'task' must be one of {', '.join(JobTask)}.", param="task")
    if task == JobTask.TRANSLATION:
        services.processor.translator.check()
    wanted, file = forms.parse(form, services, _BUILDERS[task])
    if isinstance(wanted, TranscriptionRequest) and wanted.stream:
        raise InvalidInput(
            "A job is not streamed; its progress is at its own events.", code="unsupported_value", param="stream"
        )
    return wanted, file


def accepted(record: JobRecord) -> Response:
    return JSONResponse(job_body(record), 202, {"Location": f"/v1/jobs/{record.id}"})


def job_body(record: JobRecord) -> dict[str, Any]:
    return JobBody(
        id=record.id,
        status=record.state.value,
        priority=record.priority,
        created_at=int(record.created_at),
        started_at=int(record.started_at) or None,
        ended_at=int(record.ended_at) or None,
        progress=JobProgressBody(
            done_s=round(record.done_s, 3),
            duration_s=round(record.duration_s, 3) or None,
            fraction=round(record.done_s / record.duration_s, 4) if record.duration_s else None,
            done_characters=record.done_characters if record.characters else None,
            characters=record.characters or None,
        ),
        error=ErrorDetail(**error_object(record.error)) if record.error else None,
        follow_ups=[FollowUpBody.model_validate(record.follow_up)] if record.follow_up else [],
    ).model_dump()
