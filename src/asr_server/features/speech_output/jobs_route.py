"""`/v1/audio/speech/jobs`: long texts that are spoken in the background, as jobs of `/v1/jobs`."""

from __future__ import annotations

import asyncio
from io import BytesIO

from fastapi import APIRouter, Request
from fastapi.responses import Response

from asr_server.features.speech_output.fields import MAX_JOB_CHARS, SpeechJobBody, chapters_of, speech_job_request
from asr_server.features.speech_output.speech_jobs import beginning, text_size
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.features.speech_output.text_parts import dumped
from asr_server.jobs.route import JobBody, accepted
from asr_server.net import body
from asr_server.net.errors import ErrorBody
from asr_server.services import CallerDep, ServicesDep

router = APIRouter(prefix="/v1/audio/speech/jobs", tags=["jobs"])
# JSON may write a character in six bytes, and outside the basic plane in twelve. The rest is for titles and fields.
_MAX_BYTES = 12 * MAX_JOB_CHARS + 2**20


@router.post(
    "",
    status_code=202,
    response_model=JobBody,
    responses={status: {"model": ErrorBody} for status in (400, 404, 413, 429, 501, 503)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body.schema_of(SpeechJobBody)}},
        }
    },
)
async def create_speech_job(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Accept a text of up to 2,000,000 characters that is spoken when there is time. Its state, its progress and its
    audio are those of the job, below `/v1/jobs`."""
    services.of(SpeechProcessor).check()
    async with services.jobs.room_for_text(caller.owner, caller.share):
        values = await body.read_json(request, _MAX_BYTES)
        sent = await asyncio.to_thread(body.validated, SpeechJobBody, values)
        wanted, chapters = speech_job_request(sent, services.catalog), await asyncio.to_thread(chapters_of, sent)
        services.of(SpeechProcessor).delivery(beginning(wanted, chapters))
        size = await asyncio.to_thread(text_size, wanted, chapters)
        stored = BytesIO(await asyncio.to_thread(dumped, chapters))
        return accepted(await services.jobs.add(wanted, stored, caller.owner, text=size))
