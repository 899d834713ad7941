"""`POST /v1/audio/transcriptions`: a form in, a transcript out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from asr_server.api import forms, sse
from asr_server.api.deps import Services, services
from asr_server.api.disconnect import while_connected
from asr_server.api.middleware import log_fields
from asr_server.api.schemas import TranscriptionBody, TranscriptionForm, VerboseTranscriptionBody
from asr_server.core.errors import InvalidValue, UnsupportedValue
from asr_server.service.produce import TranscriptionRequest
from asr_server.service.request import ResponseFormat
from asr_server.service.transcribe import Item

router = APIRouter(prefix="/v1/audio", tags=["audio"])
Services_ = Annotated[Services, Depends(services)]


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
async def create_transcription(request: Request, here: Services_) -> Response:
    """Transcribe a recording: WAV, FLAC, MP3, OGG, M4A, MP4, MOV, MKV, WebM, AIFF and more."""
    async with forms.received(request, here, TranscriptionForm) as (fields, file):
        check(fields)
        if fields.stream:
            items = await _accepted(request, here.transcriber.stream(file.file, forms.options(fields)))
            return sse.respond(request, sse.openai(items, with_logprobs=bool(fields.include)))
        work = here.producer.produce(file.file, wanted(fields))
        product = await while_connected(request.receive, work)
    request.state.log.update(log_fields(product.transcript))
    return Response(product.body.content, media_type=product.body.media_type)


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
async def stream_transcription(request: Request, here: Services_) -> Response:
    """Transcribe a recording and send each span when it is finished; the same form as above."""
    async with forms.received(request, here, TranscriptionForm) as (fields, file):
        check(fields)
        items = await _accepted(request, here.transcriber.stream(file.file, forms.options(fields), pieces=False))
        return sse.respond(request, sse.native(items))


async def _accepted(request: Request, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """`items` past `Accepted`: whatever is wrong with the recording is an HTTP status, before the first event."""
    await while_connected(request.receive, anext(items))
    return items


def wanted(fields: TranscriptionForm) -> TranscriptionRequest:
    """What the fields ask for."""
    return TranscriptionRequest(forms.options(fields), fields.response_format, bool(fields.include))


def check(fields: TranscriptionForm) -> None:
    """What fits together, before any audio is decoded."""
    if fields.stream and fields.response_format not in (ResponseFormat.JSON, ResponseFormat.TEXT):
        raise UnsupportedValue("Only json and text can be streamed.", param="response_format")
    if fields.include and fields.response_format is not ResponseFormat.JSON:
        raise UnsupportedValue("'include' needs response_format=json.", param="include")
    if fields.return_timestamps:
        raise UnsupportedValue("This version has no word times; use verbose_json.", param="return_timestamps")
    if not fields.timestamp_granularities:
        return
    if fields.response_format is not ResponseFormat.VERBOSE_JSON:
        raise InvalidValue(
            "'timestamp_granularities' needs response_format=verbose_json.", param="timestamp_granularities"
        )
    if "word" in fields.timestamp_granularities:
        raise UnsupportedValue("This version has segment times only, no word times.", param="timestamp_granularities")
