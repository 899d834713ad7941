"""The web page: `/` and the files of `web/`, with a policy that lets the page load from this server only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from asr_server import web

router = APIRouter()

_INDEX = "index.html"
# Recordings are played from memory (blob:); everything else comes from this server or not at all.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "connect-src 'self'",
        "media-src 'self' blob:",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=(), display-capture=()",
    # Revalidate on every load: after an update no old script runs in a new page.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


@cache
def _files() -> dict[str, _File]:
    """All files, read once: together they are smaller than one recording."""
    found = {}
    for name, path in web.files().items():
        content = path.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        found[name] = _File(content, web.MEDIA_TYPES[path.suffix], etag)
    return found


@router.options("/", include_in_schema=False)
async def options() -> Response:
    """For load balancers that ask with this method."""
    return Response(status_code=204, headers={"Allow": "GET, HEAD, OPTIONS"})


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """The page."""
    return _answer(request, _INDEX)


@router.get("/web/{name:path}", include_in_schema=False)
async def file(request: Request, name: str) -> Response:
    """A script, the style or the icon."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise HTTPException(404)
    headers = {**_HEADERS, "ETag": found.etag}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)
