"""`POST /v1/audio/transcriptions`: a form in, a transcript out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from asr_server.api import body, sse
from asr_server.api.deps import Services, services
from asr_server.api.disconnect import while_connected
from asr_server.api.middleware import log_fields
from asr_server.api.schemas import ErrorBody, TranscriptionBody, TranscriptionForm, VerboseTranscriptionBody
from asr_server.core.errors import EmptyFile, InvalidInput, InvalidValue, MissingParameter, UnsupportedValue
from asr_server.service.render import render
from asr_server.service.request import ResponseFormat, TranscribeOptions, context
from asr_server.service.transcribe import Item
from asr_server.text import languages

router = APIRouter(prefix="/v1/audio", tags=["audio"])
Services_ = Annotated[Services, Depends(services)]

_LISTS = ("hotwords", "keywords", "timestamp_granularities", "include")
_SCALARS = frozenset(TranscriptionForm.model_fields) - frozenset(_LISTS)


def _request_schema() -> dict[str, Any]:
    schema = TranscriptionForm.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    schema["properties"]["response_format"] = {
        "type": "string",
        "enum": [f.value for f in ResponseFormat],
        "default": ResponseFormat.JSON.value,
        "description": "Shape of the answer.",
    }
    schema["properties"] = {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "The recording; its content decides, not its name.",
        },
        **schema["properties"],
    }
    schema["required"] = ["file", "model"]
    schema["properties"]["model"]["example"] = "whisper-1"
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 503, 504)
}


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
        **_ERRORS,
    },
    openapi_extra=_request_schema(),
)
async def create_transcription(request: Request, here: Services_) -> Response:
    """Transcribe a recording: WAV, FLAC, MP3, OGG, M4A, MP4, MOV, MKV, WebM, AIFF and more."""
    async with _received(request, here) as (fields, file):
        if fields.stream:
            _check_streamable(fields.response_format)
            items = await _accepted(request, here.transcriber.stream(file.file, _options(fields)))
            return sse.respond(request, sse.openai(items, with_logprobs=bool(fields.include)))
        work = here.transcriber.transcribe(file.file, _options(fields))
        transcript = await while_connected(request.receive, work)
    request.state.log.update(log_fields(transcript))
    answer = render(transcript, fields.response_format, with_logprobs=bool(fields.include))
    return Response(answer.content, media_type=answer.media_type)


@router.post(
    "/transcriptions/stream",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: one for each finished span in order, one for the whole, and `done`.",
            "content": {"text/event-stream": {"example": 'data: {"text": "turn on", "is_final": false, ...}\n\n'}},
        },
        **_ERRORS,
    },
    openapi_extra=_request_schema(),
)
async def stream_transcription(request: Request, here: Services_) -> Response:
    """Transcribe a recording and send each span when it is finished; the same form as above."""
    async with _received(request, here) as (fields, file):
        items = await _accepted(request, here.transcriber.stream(file.file, _options(fields), pieces=False))
        return sse.respond(request, sse.native(items))


@asynccontextmanager
async def _received(request: Request, here: Services) -> AsyncGenerator[tuple[TranscriptionForm, UploadFile], None]:
    """The checked fields and the file, which is gone when the block ends."""
    here.transcriber.check_room()
    form = await body.read_form(request, here.settings.max_upload_bytes)
    try:
        fields, file = _parse(form)
        here.catalog.find(fields.model)
        yield fields, file
    finally:
        await form.close()


async def _accepted(request: Request, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """`items` past `Accepted`: whatever is wrong with the recording is an HTTP status, before the first event."""
    await while_connected(request.receive, anext(items))
    return items


def _parse(form: FormData) -> tuple[TranscriptionForm, UploadFile]:
    """The checked fields and the file. Everything is checked before any audio is decoded."""
    file = body.upload(form, "file")
    if file is None:
        raise MissingParameter("The form has no file part named 'file'.", param="file")
    values: dict[str, Any] = dict(body.scalars(form, _SCALARS))
    values |= {name: items for name in _LISTS if (items := body.listed(form, name))}
    try:
        fields = TranscriptionForm.model_validate(values)
    except ValidationError as error:
        raise _field_error(error) from None
    _refuse_what_is_not_here(fields)
    if file.size == 0:
        raise EmptyFile("The file is empty.", param="file")
    return fields, file


def _field_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    param = str(first["loc"][0])
    if first["type"] == "missing":
        return MissingParameter(f"The field '{param}' is required.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param)


def _refuse_what_is_not_here(fields: TranscriptionForm) -> None:
    """An option that would be ignored is refused: silence would look like an answer."""
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


def _options(fields: TranscriptionForm) -> TranscribeOptions:
    return TranscribeOptions(
        language=languages.normalize(fields.language),
        context=context(fields.prompt, fields.hotwords + fields.keywords),
        temperature=fields.temperature,
    )


def _check_streamable(response_format: ResponseFormat) -> None:
    if response_format not in (ResponseFormat.JSON, ResponseFormat.TEXT):
        raise UnsupportedValue("Only json and text can be streamed.", param="response_format")
