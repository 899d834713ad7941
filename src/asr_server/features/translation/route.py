"""`POST /v1/audio/translations` and `/v1/text/translations`: a recording or texts in, a translation out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from asr_server.features.translation.translations import Translations
from asr_server.net import body
from asr_server.net.body import while_connected
from asr_server.net.errors import ErrorBody, content
from asr_server.recordings import forms
from asr_server.recordings.requests import TranslationRequest
from asr_server.recordings.route import SegmentBody, TranscriptionBody, VerboseTranscriptionBody, respond
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts, ServicesDep


class TranslationBody(TranscriptionBody):
    """`response_format=json` of a translation."""

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
    """`response_format=verbose_json` of a translation."""

    task: Literal["translate"]  # type: ignore[assignment]  # OpenAI's own name of the task
    source_language: str
    untranslated: int
    source_text: str | None = None
    segments: list[TranslatedSegmentBody]  # type: ignore[assignment]  # segments of this body say more


class TextTranslationBody(BaseModel):
    """Texts in another language, in the order in which they were sent."""

    translations: list[str] = Field(description="The translation of each text, or the text itself.")
    reasons: list[str] = Field(description="Why a text has no translation; empty where it has one.")
    untranslated: int = Field(description="Texts that could not be translated and stayed as they were.")
    language: str = Field(description="English name of the target language.")
    language_code: str = Field(description="Its BCP 47 tag.")


router = APIRouter()

_MAX_TEXTS, _MAX_TEXT_CHARS = 200, 2_000
# JSON may write a character in six bytes, and outside the basic plane in twelve. The rest is for the other fields.
_MAX_BODY_BYTES = 12 * _MAX_TEXTS * _MAX_TEXT_CHARS + 64 * 1024
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 413, 429, 500, 501, 502, 503)
}

Text = Annotated[str, Field(max_length=_MAX_TEXT_CHARS)]


class TextTranslationRequest(BaseModel):
    """The body."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    texts: list[Text] = Field(
        description="Neighbours are context for each other.",
        examples=[["Dinner is ready."]],
        min_length=1,
        max_length=_MAX_TEXTS,
    )
    target_language: str = Field(description="Any language, as a BCP 47 tag or an English name.", examples=["de"])
    source_language: str = Field("", description="The same for the texts; empty: not known.")


@router.post("/openai/deployments/{deployment}/audio/translations", include_in_schema=False)
@router.post(
    "/v1/audio/translations",
    tags=["audio"],
    response_model=VerboseTranslationBody | TranslationBody,  # the richest first
    responses={
        200: {
            "description": "The translation in the format asked for. `X-Untranslated` counts the segments that stayed "
            "in the source language.",
            **content({"text/plain": "bitte das Licht in der Küche an\n"}),
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(TranslationRequest),
)
async def create_translation(request: Request, services: ServicesDep) -> Response:
    """Transcribe a recording and translate the text. Only text leaves the server, and only to the endpoint it was
    set up with."""
    services.of(Translations).check()
    async with forms.received(request, services, forms.translation_request) as (wanted, file):
        return await respond(request, services, wanted, file)


@router.post(
    "/v1/text/translations",
    tags=["text"],
    responses=_ERRORS,
    openapi_extra=body.json_of(TextTranslationRequest),
)
async def translate_texts(request: Request, services: ServicesDep) -> TextTranslationBody:
    """Translate texts, such as lines of a transcript. Only they leave the server, and only to the endpoint it was set
    up with."""
    services.of(Translations).check()
    wanted = body.validated(TextTranslationRequest, await body.read_json(request, _MAX_BODY_BYTES))
    work = services.of(Translations).texts(
        wanted.texts,
        target_language=wanted.target_language,
        source_language=wanted.source_language,
        limit_s=services.settings.request_timeout,
    )
    found = await while_connected(request.receive, work)
    request.state.log |= {"lines": len(found.lines), "untranslated": found.untranslated}
    return TextTranslationBody(
        translations=[line.text for line in found.lines],
        reasons=[line.reason.value for line in found.lines],
        untranslated=found.untranslated,
        language=found.target.name,
        language_code=found.target.tag,
    )


def _build(core: CoreParts) -> FeatureParts:
    translations = Translations(core.settings, core.registry)
    return FeatureParts([translations], translator=translations, close=translations.close)


SERVER = ServerFeature(
    routers=[router],
    build=_build,
)
