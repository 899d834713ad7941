"""`POST /v1/audio/subtitles`: a form in, a subtitle file out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from asr_server.api import answers, forms, wishes
from asr_server.api.deps import Services, services
from asr_server.api.fields import SubtitleForm

router = APIRouter(prefix="/v1/audio", tags=["audio"])
Services_ = Annotated[Services, Depends(services)]


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
async def create_subtitles(request: Request, here: Services_) -> Response:
    """Subtitles of a recording: broken at sentences, clauses and pauses, as fast as one can read."""
    async with forms.received(request, here, SubtitleForm) as (fields, file):
        return await answers.produced(request, here, file, wishes.subtitles(fields, here.settings))
