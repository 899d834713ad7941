"""What every answer says to a browser: what it may do with it. Not CORS, which says who may read it."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN = (
    "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; connect-src 'self' ws: wss:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The page of the API has a script and styles within it, which come from a library and hold nothing of a caller's.
_OF_DOCS = _OWN + "; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
_DOCS = ("/docs", "/docs/oauth2-redirect")


class BrowserHeaders:
    """ASGI: content types are as they say, pages run only scripts of ours, and addresses (with ids) stay here.

    A route that sets one of these itself is left to it.
    """

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
                headers.setdefault("Content-Security-Policy", _OF_DOCS if scope["path"] in _DOCS else _OWN)
            await send(message)

        await self._app(scope, receive, send_with_headers)
