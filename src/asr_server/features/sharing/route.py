"""The routes of shared sessions: the owner of a session makes and revokes links, and readers have the token alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from asr_server.core.errors import InvalidValue, SessionNotFound
from asr_server.features.sharing.captions import Caption, vtt
from asr_server.features.sharing.sharing import MAX_LANGUAGES, Sharing
from asr_server.features.sharing.translated import Translate
from asr_server.features.translation.lines import Translated
from asr_server.features.translation.translations import Translations
from asr_server.net import body, event_stream
from asr_server.net.errors import ErrorBody, content
from asr_server.processes.threads import in_thread
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import CallerDep, FeatureParts, Services, ServicesDep
from asr_server.text import languages
from asr_server.text.languages import LanguageTag
from asr_server.web import CAPTIONS_PATH

_MAX_BODY_BYTES = 1_000
_MAX_DIGITS = 15
_DAY_S = 86_400
_MAX_LANGUAGE_CHARS = 100
# Readers wait for a translation, and the next one waits for it too.
_TRANSLATION_S = 20.0


class ShareBody(BaseModel):
    """The body of a request for a link."""

    expires_s: int = Field(
        4 * 3600, ge=1, le=_DAY_S, strict=True, description="Seconds after which the link ends, with its readers."
    )
    languages: list[Annotated[str, Field(max_length=_MAX_LANGUAGE_CHARS)]] = Field(
        [],
        max_length=MAX_LANGUAGES,
        description="Languages into which sentences are translated for readers who ask for one: BCP 47 tags or "
        "English names. They leave the server for the endpoint of OPENAI_BASE_URL.",
    )


class SharedBody(BaseModel):
    """A link to a live session. The addresses are paths of this server, and whoever has one may read."""

    token: str
    expires_at: int = Field(description="Unix seconds. The link ends earlier with the session, or when it is revoked.")
    page: str = Field(description="The page of captions. The token is in the fragment, which browsers do not send.")
    events: str = Field(description="The captions as server-sent events.")
    captions: str = Field(description="The finals so far as WebVTT.")
    playlist: str = Field(description="The finals as an HLS playlist of WebVTT segments.")
    languages: list[str] = Field(description="Tags of the languages that `?language=` of these addresses takes.")


router = APIRouter(tags=["live"])
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 404)}
_SHARED = "/v1/live/shared/{token}"

_Language = Annotated[
    str, Query(max_length=_MAX_LANGUAGE_CHARS, description="One that the link offers; empty: what was said.")
]
_StreamTime = Annotated[
    int,
    Query(
        ge=0,
        lt=2**33,
        description="Time of the player's stream where the session begins, in 1/90,000 s: X-TIMESTAMP-MAP of segments.",
    ),
]
_SegmentNumber = Annotated[int, Path(ge=0, lt=2**31)]
_PLAYLIST_TYPE = "application/vnd.apple.mpegurl"
# A caption, how the stream begins, or how it ends.
_Event = Caption | dict[str, Any]


@router.post(
    "/v1/live/{session_id}/share",
    responses={**_ERRORS, **{status: {"model": ErrorBody} for status in (413, 429, 501)}},
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": body.schema_of(ShareBody)}}}},
)
async def share_session(request: Request, session_id: str, services: ServicesDep, caller: CallerDep) -> SharedBody:
    """Make a link for people who may read the session. It shows what is committed from now on."""
    wanted = body.validated(ShareBody, await body.read_json(request, _MAX_BODY_BYTES))
    targets = [languages.find(language, param="languages") for language in wanted.languages]
    if targets:
        services.of(Translations).check()
    translators = {target: _translate_to(target, services) for target in targets}
    link = services.of(Sharing).share(session_id, caller.owner, wanted.expires_s, translators)
    shared = _SHARED.format(token=link.token)
    return SharedBody(
        token=link.token,
        expires_at=round(link.expires_at_s),
        page=f"{CAPTIONS_PATH}#{link.token}",
        events=f"{shared}/events",
        captions=f"{shared}/captions.vtt",
        playlist=f"{shared}/captions.m3u8",
        languages=[target.tag for target in translators],
    )


@router.delete("/v1/live/{session_id}/share/{token}", status_code=204, responses=_ERRORS)
async def revoke_link(session_id: str, token: str, services: ServicesDep, caller: CallerDep) -> None:
    """Revoke a link. Its readers are told so, and their streams end."""
    services.of(Sharing).revoke(session_id, caller.owner, token)


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
    language: _Language = "",
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Stream the captions as server-sent events. `Last-Event-ID`: the id of the last event that the reader has.

    In a language that the link offers, texts grow by sentences. One that could not be translated stays as it was said.
    """
    after, sharing = _number(last_event_id), services.of(Sharing)

    async def read(emit: Callable[[_Event], Awaitable[None]]) -> None:
        with sharing.reading(token, after, language) as reader:
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
async def shared_captions(token: str, services: ServicesDep, language: _Language = "") -> Response:
    """Return the finals that are kept as WebVTT. Times are those of the session."""
    finals = tuple(services.of(Sharing).link(token).captions_in(language).finals)
    # In a thread: the first request has the cues of all finals to make.
    file = await in_thread(vtt, finals)
    return Response(file, media_type="text/vtt; charset=utf-8", headers={"Cache-Control": "no-store"})


@router.get(
    f"{_SHARED}/captions.m3u8",
    response_class=Response,
    responses={**_ERRORS, 200: {"description": "The playlist.", **content({_PLAYLIST_TYPE: "#EXTM3U\n"})}},
)
async def shared_playlist(
    token: str, services: ServicesDep, language: _Language = "", mpegts: _StreamTime = 0
) -> Response:
    """Return an HLS media playlist of the finals, in WebVTT segments of six seconds of the session."""
    segments = await services.of(Sharing).link(token).segments_in(language)
    playlist = segments.playlist(urlencode({"language": language, "mpegts": mpegts}))
    return Response(playlist, media_type=_PLAYLIST_TYPE, headers={"Cache-Control": "no-store"})


@router.get(
    f"{_SHARED}/segments/{{number}}.vtt",
    response_class=Response,
    responses={**_ERRORS, 200: {"description": "The cues.", **content({"text/vtt": "WEBVTT\n"})}},
)
async def shared_segment(
    token: str, number: _SegmentNumber, services: ServicesDep, language: _Language = "", mpegts: _StreamTime = 0
) -> Response:
    """Return a segment of the playlist. The last 20 are kept."""
    segments = await services.of(Sharing).link(token).segments_in(language)
    file = segments.segment(number, mpegts)
    if file is None:
        raise SessionNotFound("The playlist has no such segment any more, or not yet.", param="number")
    return Response(file, media_type="text/vtt; charset=utf-8", headers={"Cache-Control": "no-store"})


def _translate_to(target: LanguageTag, services: Services) -> Translate:
    async def translate(texts: Sequence[str], source_language: str) -> list[Translated]:
        lines, _ = await services.of(Translations).texts(
            texts, target_language=target.tag, source_language=source_language, limit_s=_TRANSLATION_S
        )
        return lines

    return translate


def _frames(event: _Event) -> tuple[str]:
    return (event.frame if isinstance(event, Caption) else event_stream.frame(event),)


def _number(last_event_id: str) -> int:
    """Return the number of the caption with this id, 0 for "". Raises `InvalidValue`."""
    if not last_event_id:
        return 0
    if len(last_event_id) > _MAX_DIGITS or not (last_event_id.isascii() and last_event_id.isdigit()):
        raise InvalidValue("Last-Event-ID is not the id of an event of this stream.", param="Last-Event-ID")
    return int(last_event_id)


def _build(core: CoreParts) -> FeatureParts:
    sharing = Sharing()
    return FeatureParts([sharing], read_opening=sharing.read_opening)


SERVER = ServerFeature(routers=[router], build=_build)
