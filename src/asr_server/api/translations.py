"""`POST /v1/audio/translations`: a form in, the transcript in another language out."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from asr_server.api import body
from asr_server.api.deps import Services, services
from asr_server.api.disconnect import while_connected
from asr_server.api.middleware import log_fields
from asr_server.api.schemas import Boolean, ErrorBody, SegmentBody, TranscriptionBody, VerboseTranscriptionBody
from asr_server.core.errors import (
    EmptyFile,
    InvalidInput,
    InvalidLanguage,
    InvalidValue,
    MissingParameter,
    UnsupportedLanguage,
)
from asr_server.core.transcript import Transcript
from asr_server.service.render import Body
from asr_server.service.render_translation import render_cues, render_transcript
from asr_server.service.request import ResponseFormat, TranscribeOptions, context
from asr_server.service.translate import TranslatedCues, TranslatedTranscript, TranslateOptions
from asr_server.subtitle.cues import Cue
from asr_server.text import languages, tongues

router = APIRouter(prefix="/v1/audio", tags=["audio"])
Services_ = Annotated[Services, Depends(services)]

_LISTS = ("hotwords",)
_SUBTITLES = frozenset({ResponseFormat.SRT, ResponseFormat.VTT})


def _object(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


Term = Annotated[str, Field(min_length=1, max_length=100)]
Glossary = Annotated[dict[Term, Term], BeforeValidator(_object), Field(max_length=200)]


class TranslationForm(BaseModel):
    """The text fields of a translation request; unknown fields are ignored, as OpenAI's clients expect."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(description="A name from /v1/models.")
    language: str = Field("en", description="Target: any language, as a BCP 47 tag or an English name.")
    source_language: str = Field("", description="Language of the recording, as for transcriptions; empty: detect.")
    prompt: str = Field("", description="Text that helps recognition: names, terms, the topic.", max_length=16_000)
    hotwords: list[str] = Field([], description="Words to listen for, comma-separated or repeated.")
    glossary: Glossary = Field({}, description='How to translate terms, as JSON: {"term": "translation"}.')
    response_format: ResponseFormat = Field(ResponseFormat.JSON, description="Shape of the answer.")
    temperature: float = Field(0.0, ge=0, le=1, description="Of the recognition: 0 is greedy and repeatable.")
    bilingual: Boolean = Field(False, description="The source text along with the translation.")
    source_on_failure: Boolean = Field(False, description="Where translating fails, the source instead of an error.")


class TranslationBody(TranscriptionBody):
    """`response_format=json`."""

    language: str = Field(description="English name of the text's language.")
    source_language: str = Field(description="The model's name of the language that is spoken.")
    untranslated: int = Field(description="Segments that could not be translated and stayed as they were.")
    source_text: str | None = Field(None, description="Only with `bilingual`.")


class TranslatedSegmentBody(SegmentBody):
    """One span of speech in verbose_json. Scores and times are the recognition's; tokens are empty."""

    translated: bool
    reason: str = Field(description="Why there is no translation; empty where there is one.")
    source_text: str | None = Field(None, description="Only with `bilingual`.")


class VerboseTranslationBody(VerboseTranscriptionBody):
    """`response_format=verbose_json`."""

    task: Literal["translate"]  # type: ignore[assignment]  # OpenAI's own name of the task
    source_language: str
    untranslated: int
    source_text: str | None = None
    segments: list[TranslatedSegmentBody]  # type: ignore[assignment]  # segments of this body say more


def _request_schema() -> dict[str, Any]:
    schema = TranslationForm.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    formats = {"type": "string", "enum": [f.value for f in ResponseFormat], "default": ResponseFormat.JSON.value}
    schema["properties"]["response_format"] = {**formats, "description": "Shape of the answer."}
    file = {"type": "string", "format": "binary", "description": "The recording; its content decides, not its name."}
    schema["properties"] = {"file": file, **schema["properties"]}
    schema["required"] = ["file", "model"]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


@router.post(
    "/translations",
    response_model=TranslationBody | VerboseTranslationBody,
    responses={
        200: {
            "description": "The translation in the format asked for. `X-Untranslated` counts the segments that stayed "
            "in the source language.",
            "content": {"text/plain": {"example": "bitte das Licht in der Küche an\n"}},
        },
        **{status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 501, 502, 503, 504)},
    },
    openapi_extra=_request_schema(),
)
async def create_translation(request: Request, here: Services_) -> Response:
    """Transcribe a recording and translate the text. Only text leaves the server, and only to the endpoint it was
    set up with."""
    async with _received(request, here) as (fields, file):
        transcribing, translating = _options(fields)
        work = _translated(here, file, (transcribing, translating), fields)
        transcript, found, answer = await while_connected(request.receive, work)
    request.state.log.update(log_fields(transcript) | {"untranslated": found.kept})
    headers = {"X-Untranslated": str(found.kept)}
    if found.failure:
        headers["X-Translation-Error"] = found.failure.code
    return Response(answer.content, media_type=answer.media_type, headers=headers)


async def _translated(
    here: Services, file: UploadFile, options: tuple[TranscribeOptions, TranslateOptions], fields: TranslationForm
) -> tuple[Transcript, TranslatedCues | TranslatedTranscript, Body]:
    """Both steps within the time limit of one request."""
    began_s = time.monotonic()
    transcribing, wanted = options
    transcript = await here.transcriber.transcribe(file.file, transcribing)
    limit_s = max(0.0, here.settings.request_timeout - (time.monotonic() - began_s))
    translating = TranslateOptions(wanted.target, wanted.source, wanted.glossary, wanted.keep_on_failure, limit_s)
    if fields.response_format in _SUBTITLES:
        cues = [Cue(s.start_ms, s.end_ms, s.text) for s in transcript.segments]
        spoken = [s.language for s in transcript.segments]
        lines = await here.translations.cues(cues, translating, languages=spoken)
        return transcript, lines, render_cues(lines, fields.response_format, bilingual=fields.bilingual)
    text = await here.translations.transcript(transcript, translating)
    return transcript, text, render_transcript(text, fields.response_format, bilingual=fields.bilingual)


@asynccontextmanager
async def _received(request: Request, here: Services) -> AsyncGenerator[tuple[TranslationForm, UploadFile], None]:
    """The checked fields and the file, which is gone when the block ends."""
    here.translations.check()
    here.transcriber.check_room()
    form = await body.read_form(request, here.settings.max_upload_bytes)
    try:
        fields, file = _parse(form)
        here.catalog.find(fields.model)
        yield fields, file
    finally:
        await form.close()


def _parse(form: FormData) -> tuple[TranslationForm, UploadFile]:
    file = body.upload(form, "file")
    if file is None:
        raise MissingParameter("The form has no file part named 'file'.", param="file")
    values: dict[str, Any] = dict(body.scalars(form, frozenset(TranslationForm.model_fields) - frozenset(_LISTS)))
    values |= {name: items for name in _LISTS if (items := body.listed(form, name))}
    try:
        fields = TranslationForm.model_validate(values)
    except ValidationError as error:
        raise _field_error(error) from None
    if file.size == 0:
        raise EmptyFile("The file is empty.", param="file")
    return fields, file


def _field_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    param = str(first["loc"][0])
    if first["type"] == "missing":
        return MissingParameter(f"The field '{param}' is required.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param)


def _options(fields: TranslationForm) -> tuple[TranscribeOptions, TranslateOptions]:
    try:
        source = languages.normalize(fields.source_language)
    except (InvalidLanguage, UnsupportedLanguage) as error:
        error.param = "source_language"
        raise
    transcribing = TranscribeOptions(source, context(fields.prompt, fields.hotwords), fields.temperature)
    translating = TranslateOptions(
        target=tongues.find(fields.language),
        source=tongues.find(source) if source else None,
        glossary=fields.glossary,
        keep_on_failure=fields.source_on_failure,
    )
    return transcribing, translating
