"""`POST /v1/audio/subtitles`: a form in, a subtitle file out."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from asr_server.recordings import forms, responses
from asr_server.recordings.fields import SubtitleForm
from asr_server.services import ServicesDep

router = APIRouter(prefix="/v1/audio", tags=["audio"])


@router.post(
    "/subtitles",
    response_class=Response,
    responses={
        200: {
            "description": "The file. `X-Subtitle-Timing` says where its times come from: `aligned`, `estimated` or "
            "`mixed`.",
            "content": {"text/plain": {"example": "1\n00:00:00,250 --> 00:00:02,800\nTurn on the lights.\n\n"}},
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(SubtitleForm),
)
async def create_subtitles(request: Request, services: ServicesDep) -> Response:
    """Subtitles of a recording: broken at sentences, clauses and pauses, as fast as one can read."""
    async with forms.received(request, services, forms.subtitle_request) as (wanted, file):
        return await responses.respond(request, services, wanted, file)
