"""`POST /v1/audio/transcriptions`: a form in, a transcript out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import Response

from asr_server.api.dependencies import ServicesDep
from asr_server.api.disconnect import while_connected
from asr_server.api.http import forms, requests, responses, sse
from asr_server.api.http.fields import TranscriptionForm
from asr_server.api.http.schemas import TranscriptionBody, VerboseTranscriptionBody
from asr_server.core.errors import UnsupportedValue
from asr_server.service.recordings.transcriber import Item

router = APIRouter(prefix="/v1/audio", tags=["audio"])


@router.post(
    "/transcriptions",
    response_model=TranscriptionBody | VerboseTranscriptionBody,
    responses={
        200: {
            "description": "The transcript in the format asked for; with `stream`, server-sent events.",
            "content": {
                "text/plain": {"example": "turn on the kitchen lights please\n"},
                "text/event-stream": {"example": 'data: {"type": "transcript.text.delta", "delta": "turn on"}\n\n'},
            },
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(TranscriptionForm),
)
async def create_transcription(request: Request, services: ServicesDep) -> Response:
    """Transcribe a recording: WAV, FLAC, MP3, OGG, M4A, MP4, MOV, MKV, WebM, AIFF and more."""
    async with forms.received(request, services, TranscriptionForm) as (fields, file):
        wanted = requests.transcription_request(fields, services.settings)
        if fields.stream:
            items = await _accepted(request, services.transcriber.stream(file.file, wanted.options))
            return sse.respond(request, sse.openai(items, wanted.shape))
        return await responses.respond(request, services, file, wanted)


@router.post(
    "/transcriptions/stream",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: one for each finished span in order, one for the whole, and `done`.",
            "content": {"text/event-stream": {"example": 'data: {"text": "turn on", "is_final": false, ...}\n\n'}},
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(TranscriptionForm),
)
async def stream_transcription(request: Request, services: ServicesDep) -> Response:
    """Transcribe a recording and send each span when it is finished; the same form as above."""
    async with forms.received(request, services, TranscriptionForm) as (fields, file):
        requests.check_streamed(fields)
        wanted = requests.transcription_request(fields, services.settings)
        if wanted.shape.logprobs:
            raise UnsupportedValue("'include' is not served in this stream.", param="include")
        items = await _accepted(request, services.transcriber.stream(file.file, wanted.options, pieces=False))
        return sse.respond(request, sse.native(items, wanted.shape))


async def _accepted(request: Request, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """`items`, whose first is there: whatever is wrong with the recording is an HTTP status, before the first event."""
    first = await while_connected(request.receive, anext(items))
    return _behind(first, items)


async def _behind(first: Item, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    async with aclosing(items):
        yield first
        async for item in items:
            yield item
