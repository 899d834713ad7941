"""The middleware of a server and of a gateway, with security headers and `HEAD` for every route that has `GET`."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr_server.net import errors
from asr_server.net.access import AccessControl, AccessRules
from asr_server.net.request_log import RequestLog

_POLICY = (
    "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; connect-src 'self' ws: wss:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The documentation page has an inline script and inline styles of a library; they hold no data of callers.
_DOCS_POLICY = _POLICY + "; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
_DOCS = ("/docs", "/docs/oauth2-redirect")


class BrowserHeaders:
    """ASGI middleware: adds the headers to every response. A header that a route sets itself is kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("Referrer-Policy", "no-referrer")
                # Pages of ALLOWED_ORIGINS read by CORS, which this does not concern.
                headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
                headers.setdefault("Content-Security-Policy", _DOCS_POLICY if scope["path"] in _DOCS else _POLICY)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class HeadRequests:
    """ASGI middleware: passes `HEAD` on as `GET` and sends the head of the response only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                begun.set()

        async def receive_end() -> Message:
            # A stream of events would not end by itself: its reader is gone once it has the head.
            await begun.wait()
            return {"type": "http.disconnect"}

        # From version 2.4 on Starlette expects `send` to raise when the reader is gone, and does not ask `receive`.
        asgi = {**scope.get("asgi", {}), "spec_version": "2.3"}
        await self._app({**scope, "asgi": asgi, "method": "GET"}, receive_end, send_head)


# The headers that a page of another origin may read.
_EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "server-timing",
    "content-disposition",
    "x-audio-duration",
    "x-subtitle-timing",
    "x-untranslated",
    "x-translation-error",
    "location",
)


def install_middleware(app: FastAPI, rules: AccessRules) -> None:
    """Add the middleware, from the innermost, which a request reaches last, to the outermost."""
    app.add_middleware(AccessControl, rules=rules)
    app.add_middleware(errors.UnexpectedErrors)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=sorted(rules.origins.allowed),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=_EXPOSED,
    )
    app.add_middleware(BrowserHeaders)
    app.add_middleware(HeadRequests)
    app.add_middleware(RequestLog)
