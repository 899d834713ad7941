"""The routes of shared sessions: the owner of a session makes and revokes links, and readers have only the token."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from asr_server.core.errors import InvalidInput
from asr_server.features.sharing.captions import Caption, vtt
from asr_server.features.sharing.sharing import Sharing
from asr_server.net import body, event_stream
from asr_server.net.errors import ErrorBody, content
from asr_server.processes.caller_work import in_thread
from asr_server.server_feature import ServerFeature
from asr_server.services import CallerDep, FeatureParts, ServicesDep
from asr_server.web import CAPTIONS_PATH

_MAX_BODY_BYTES = 1_000
_MAX_DIGITS = 15
_DAY_S = 86_400


class ShareBody(BaseModel):
    """The body of a request for a link."""

    expires_s: int = Field(
        4 * 3600, ge=1, le=_DAY_S, strict=True, description="Seconds after which the link ends, with its readers."
    )


class SharedBody(BaseModel):
    """A link to a live session. The addresses are paths of this server, and anybody who has one may read."""

    token: str
    expires_at: int = Field(description="Unix seconds. The link ends earlier with the session, or when it is revoked.")
    page: str = Field(description="The page of captions. The token is in the fragment, which browsers do not send.")
    events: str = Field(description="The captions as server-sent events.")
    captions: str = Field(description="The finals so far as WebVTT.")


router = APIRouter(tags=["live"])
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 404)}
_SHARED = "/v1/live/shared/{token}"

# A caption, or the first or last event of the stream.
_Event = Caption | dict[str, Any]


@router.post(
    "/v1/live/{session_id}/share",
    responses={**_ERRORS, **{status: {"model": ErrorBody} for status in (413, 429)}},
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": body.schema_of(ShareBody)}}}},
)
async def share_session(request: Request, session_id: str, services: ServicesDep, caller: CallerDep) -> SharedBody:
    """Make a link for people who may read the session. It shows what is committed from now on."""
    wanted = body.validated(ShareBody, await body.read_json(request, _MAX_BODY_BYTES))
    session = services.live.owned(session_id, caller.owner)
    token = services.of(Sharing).share(session, caller.owner, wanted.expires_s)
    shared = _SHARED.format(token=token)
    return SharedBody(
        token=token,
        expires_at=round(time.time() + wanted.expires_s),
        page=f"{CAPTIONS_PATH}#{token}",
        events=f"{shared}/events",
        captions=f"{shared}/captions.vtt",
    )


@router.delete("/v1/live/{session_id}/share/{token}", status_code=204, responses=_ERRORS)
async def revoke_link(session_id: str, token: str, services: ServicesDep, caller: CallerDep) -> None:
    """Revoke a link. Its readers are notified, and their streams end."""
    services.of(Sharing).revoke(services.live.owned(session_id, caller.owner), token)


@router.get(
    f"{_SHARED}/events",
    response_class=Response,
    responses={
        **_ERRORS,
        200: {
            "description": "The finals that are kept, then committed words and finals as they come.",
            **content({"text/event-stream": 'id: 7\ndata: {"type": "words", "text": "turn on", ...}\n\n'}),
        },
    },
)
async def shared_events(
    request: Request,
    token: str,
    services: ServicesDep,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Stream the captions as server-sent events. `Last-Event-ID`: the id of the last event that the reader has."""
    after, sharing = _number(last_event_id), services.of(Sharing)

    async def read(emit: Callable[[_Event], Awaitable[None]]) -> None:
        with sharing.reading(token, after) as reader:
            await emit({"type": "begin", "complete": reader.is_complete})
            async with aclosing(reader.captions()) as captions:
                async for caption in captions:
                    await emit(caption)
            await emit({"type": "end", "reason": reader.end_reason})

    return await event_stream.respond(request, read, _frames)


@router.get(
    f"{_SHARED}/captions.vtt",
    response_class=Response,
    responses={**_ERRORS, 200: {"description": "The cues.", **content({"text/vtt": "WEBVTT\n"})}},
)
async def shared_captions(token: str, services: ServicesDep) -> Response:
    """Return the finals that are kept as WebVTT. Times count from the start of the session."""
    finals = tuple(services.of(Sharing).link(token).part.captions.finals)
    # In a thread: the first request makes the cues of all finals.
    file = await in_thread(vtt, finals)
    return Response(file, media_type="text/vtt; charset=utf-8", headers={"Cache-Control": "no-store"})


def _frames(event: _Event) -> tuple[str]:
    return (event.frame if isinstance(event, Caption) else event_stream.frame(event),)


def _number(last_event_id: str) -> int:
    """Return the number of the caption with this id, 0 for "". Raises `invalid_value`."""
    if not last_event_id:
        return 0
    if len(last_event_id) > _MAX_DIGITS or not (last_event_id.isascii() and last_event_id.isdigit()):
        raise InvalidInput("Last-Event-ID is not the id of an event of this stream.", param="Last-Event-ID")
    return int(last_event_id)


SERVER = ServerFeature(routers=[router], build=lambda _: FeatureParts([Sharing()]))
