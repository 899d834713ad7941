"""`/v1/jobs`: long recordings as work that is taken at once, watched, and fetched when it is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import FormData, UploadFile

from asr_server.api.dependencies import CallerDep, Services, ServicesDep
from asr_server.api.errors import TABLE
from asr_server.api.http import body, forms, requests, sse
from asr_server.api.http.fields import JobForm, SubtitleForm, Task, TranscriptionForm, TranslationForm
from asr_server.api.http.schemas import ErrorBody, ErrorDetail, JobBody, JobDeletedBody, JobProgressBody
from asr_server.core.errors import InvalidValue, UnsupportedValue
from asr_server.service import processor
from asr_server.service.jobs.record import JobError, JobRecord

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": ErrorBody}}


@router.post(
    "",
    status_code=202,
    response_model=JobBody,
    responses=forms.ERRORS,
    openapi_extra=forms.request_schema(JobForm),
)
async def create_job(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Take a recording to be worked on when there is time. The form is that of `/v1/audio/transcriptions`, or with
    `task` subtitles or translation that of those routes."""
    async with forms.read(request, services) as form:
        wanted, file = _wanted(form, services)
        record = await services.jobs.add(wanted, file.file, caller.owner)
    return JSONResponse(_body(record), 202, {"Location": f"/v1/jobs/{record.id}"})


@router.get("/{job_id}", response_model=JobBody, responses=_MISSING)
async def retrieve_job(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """How a job stands."""
    return JSONResponse(_body(services.jobs.get(job_id, caller.owner)))


@router.get(
    "/{job_id}/result",
    response_class=Response,
    responses={**_MISSING, 409: {"model": ErrorBody}, 200: {"description": "The body in the format asked for."}},
)
async def job_result(job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """What a job made, for `JOB_TTL` seconds."""
    result = await services.jobs.result(job_id, caller.owner)
    return Response(result.content, media_type=result.media_type, headers=result.notes)


@router.get(
    "/{job_id}/events",
    response_class=Response,
    responses={
        **_MISSING,
        200: {
            "description": "The job as it stands, and again at every change, until it is over.",
            "content": {"text/event-stream": {"example": 'data: {"id": "job_...", "status": "running", ...}\n\n'}},
        },
    },
)
async def job_events(request: Request, job_id: str, services: ServicesDep, caller: CallerDep) -> Response:
    """Progress as server-sent events."""
    services.jobs.get(job_id, caller.owner)
    return sse.respond(request, _events(services.jobs.watch(job_id, caller.owner)))


@router.delete("/{job_id}", responses=_MISSING)
async def delete_job(job_id: str, services: ServicesDep, caller: CallerDep) -> JobDeletedBody:
    """Stop a job if it runs, and remove it with its recording and its result."""
    await services.jobs.remove(job_id, caller.owner)
    return JobDeletedBody(id=job_id)


def _wanted(form: FormData, services: Services) -> tuple[processor.Request, UploadFile]:
    task = body.scalars(form, frozenset({"task"})).get("task", Task.TRANSCRIPTION)
    match task:
        case Task.TRANSCRIPTION:
            fields, file = forms.parse(form, services, TranscriptionForm)
            if fields.stream:
                raise UnsupportedValue("A job is watched at its own events, not streamed.", param="stream")
            return requests.transcription_request(fields, services.settings), file
        case Task.SUBTITLES:
            cues, file = forms.parse(form, services, SubtitleForm)
            return requests.subtitle_request(cues, services.settings), file
        case Task.TRANSLATION:
            services.translations.check()
            other, file = forms.parse(form, services, TranslationForm)
            return requests.translation_request(other, services.settings), file
        case _:
            raise InvalidValue(f"'task' must be one of {', '.join(Task)}.", param="task")


async def _events(changes: AsyncGenerator[JobRecord, None]) -> sse.Events:
    async with aclosing(changes):
        async for record in changes:
            yield sse.frame(_body(record))


def _body(record: JobRecord) -> dict[str, Any]:
    return JobBody(
        id=record.id,
        status=record.state.value,
        created_at=int(record.created_at),
        started_at=int(record.started_at) or None,
        ended_at=int(record.ended_at) or None,
        progress=JobProgressBody(
            done_s=round(record.done_s, 3),
            duration_s=round(record.duration_s, 3) or None,
            fraction=round(record.done_s / record.duration_s, 4) if record.duration_s else None,
        ),
        error=_error(record.error) if record.error else None,
    ).model_dump()


def _error(error: JobError) -> ErrorDetail:
    return ErrorDetail(message=error.message, type=TABLE[error.code].type, param=error.param, code=error.code)
