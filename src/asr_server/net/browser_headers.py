"""Security headers of every response: content type, referrer, embedding and content security policy."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
