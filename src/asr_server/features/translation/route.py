"""`POST /v1/audio/translations`: a form in, the transcript in another language out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from asr_server.features.translation.translations import Translations
from asr_server.recordings import forms, responses
from asr_server.recordings.fields import TranslationForm
from asr_server.recordings.schemas import TranslationBody, VerboseTranslationBody
from asr_server.services import ServicesDep

router = APIRouter(tags=["audio"])


@router.post("/openai/deployments/{deployment}/audio/translations", include_in_schema=False)
@router.post(
    "/v1/audio/translations",
    response_model=TranslationBody | VerboseTranslationBody,
    responses={
        200: {
            "description": "The translation in the format asked for. `X-Untranslated` counts the segments that stayed "
            "in the source language.",
            "content": {"text/plain": {"example": "bitte das Licht in der Küche an\n"}},
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(TranslationForm),
)
async def create_translation(request: Request, services: ServicesDep) -> Response:
    """Transcribe a recording and translate the text. Only text leaves the server, and only to the endpoint it was
    set up with."""
    services.of(Translations).check()
    async with forms.received(request, services, forms.translation_request) as (wanted, file):
        return await responses.respond(request, services, wanted, file)
