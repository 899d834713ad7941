"""`POST /asr` and `POST /detect-language`: the options are in the query, the answer is the file itself.

The fields and outputs follow https://ahmetoner.com/whisper-asr-webservice/ (version 1.9). Its options for
Whisper's engines, such as `vad_filter`, are ignored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, BinaryIO, Literal, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile

from asr_server.core.audio import SAMPLE_RATE, wav_header
from asr_server.core.errors import InvalidInput
from asr_server.net import body
from asr_server.net.body import while_connected
from asr_server.net.errors import content
from asr_server.recordings import forms
from asr_server.recordings.pipeline import RunOptions
from asr_server.recordings.requests import TranscriptionRequest, TranslationRequest
from asr_server.recordings.route import noted
from asr_server.server_feature import ServerFeature
from asr_server.services import Services, ServicesDep

router = APIRouter(tags=["audio"])
Build = Callable[[FormData], TranscriptionRequest | TranslationRequest]

_FILE = "audio_file"
# `tsv` and `json` are made from the segments of verbose_json.
_FORMATS = {"txt": "text", "vtt": "vtt", "srt": "srt", "tsv": "verbose_json", "json": "verbose_json"}
_MEDIA_TYPES = {"json": "application/json", "vtt": "text/vtt"}
# The language of samples without a container is detected from this many bytes: 30 s.
_DETECTED_BYTES = 30 * 2 * SAMPLE_RATE


class AsrOptions(BaseModel):
    """The query. Unknown options are ignored."""

    model_config = ConfigDict(extra="ignore")

    encode: bool = Field(True, description="False: the file has samples alone, 16 bits of one channel at 16 kHz.")
    language: str = Field("", max_length=60, description="Of the recording; empty: detected.")


class TranscriptOptions(AsrOptions):
    """The query of `POST /asr`."""

    task: Literal["transcribe", "translate"] = Field("transcribe", description="`translate`: into English.")
    output: Literal["txt", "vtt", "srt", "tsv", "json"] = "txt"
    initial_prompt: str = Field("", description="As `prompt` of the other routes.")


class DetectedLanguageBody(BaseModel):
    """The language of a recording."""

    detected_language: str = Field(description="In English, in lower case; empty where nothing is said.")
    language_code: str = Field(description="ISO 639; `und` where nothing is said.")


_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [_FILE],
                    "properties": {_FILE: {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}

_ANSWER = content({"text/plain": "", "text/vtt": "", "application/json": ""})


@router.post("/asr", response_class=Response, responses={200: _ANSWER, **forms.ERRORS}, openapi_extra=_SCHEMA)
async def transcribe(
    request: Request, services: ServicesDep, options: Annotated[TranscriptOptions, Query()]
) -> Response:
    """Transcribe a recording, or translate it into English, as whisper-asr-webservice does. `json` has segments."""
    fields = {"response_format": _FORMATS[options.output], "prompt": options.initial_prompt}
    build: Build = forms.transcription_request
    if options.task == "translate":
        fields |= {"source_language": options.language, "language": "en"}
        services.processor.translator.check()
        build = forms.translation_request
    else:
        fields["language"] = options.language
    answer, timing = await _answer(request, options, fields, build)
    headers = {"Content-Disposition": f'attachment; filename="recording.{options.output}"', **timing}
    kind = _MEDIA_TYPES.get(options.output, "text/plain")
    return Response(_content(options.output, answer), media_type=kind, headers=headers)


@router.post("/detect-language", response_model=DetectedLanguageBody, responses=forms.ERRORS, openapi_extra=_SCHEMA)
async def detect_language(request: Request, options: Annotated[AsrOptions, Query()]) -> JSONResponse:
    """Return the language of a recording, of the first 30 s where it has no container; `und` where nothing is said."""
    fields = {"response_format": "verbose_json"}
    answer, _ = await _answer(request, options, fields, forms.transcription_request, _DETECTED_BYTES)
    found = json.loads(answer)
    code = found["language_code"]
    return JSONResponse({"detected_language": found["language"] if code else "", "language_code": code or "und"})


async def _answer(
    request: Request, options: AsrOptions, fields: dict[str, str], build: Build, most_bytes: int = -1
) -> tuple[bytes, dict[str, str]]:
    """Return the answer and its timing header for the form's recording. `most_bytes`: of samples, -1 for all."""
    services: Services = request.app.state.services
    caller = request.state.caller
    services.admission.check()
    run = RunOptions(caller=caller.share, owner=caller.owner)
    async with forms.read(request, services) as form, _recording(form, options, most_bytes) as given:
        named = FormData([("file", given), *fields.items()])
        wanted, file = forms.parse(named, services, build, any_model=True)
        result, transcript = await while_connected(request.receive, services.processor.process(file.file, wanted, run))
    return result.content, noted(request, transcript)


@asynccontextmanager
async def _recording(form: FormData, options: AsrOptions, most_bytes: int = -1) -> AsyncGenerator[UploadFile, None]:
    """Yield the recording. If it has only samples, add a header and keep at most `most_bytes` of them, -1 for all."""
    file = body.upload(form, _FILE) or body.upload(form, "file")
    if file is None:
        raise InvalidInput(
            f"The form has no file part named '{_FILE}'.", code="missing_required_parameter", param=_FILE
        )
    if options.encode:
        yield file
        return
    with SpooledTemporaryFile(body.SPOOL_BYTES) as whole:
        with body.map_disk_errors():
            size = await asyncio.to_thread(_write_wav, file, most_bytes, whole)
        yield UploadFile(cast("BinaryIO", whole), size=size, filename=file.filename)


def _write_wav(file: UploadFile, most_bytes: int, whole: SpooledTemporaryFile[bytes]) -> int:
    size = file.size or 0
    size = size if most_bytes < 0 else min(size, most_bytes)
    whole.write(wav_header(size, SAMPLE_RATE))
    file.file.seek(0)
    left = size
    while left and (block := file.file.read(min(left, body.SPOOL_BYTES))):
        whole.write(block)
        left -= len(block)
    whole.seek(0)
    return size


def _content(output: str, answer: bytes) -> bytes:
    if output not in ("tsv", "json"):
        return answer
    found: dict[str, Any] = json.loads(answer)
    if output == "json":
        kept = {"text": found["text"], "segments": found["segments"], "language": found["language_code"]}
        return json.dumps(kept, ensure_ascii=False).encode()
    rows = [
        f"{round(1000 * one['start'])}\t{round(1000 * one['end'])}\t{' '.join(one['text'].split())}"
        for one in found["segments"]
    ]
    return "\n".join(["start\tend\ttext", *rows, ""]).encode()


SERVER = ServerFeature(routers=[router])
