"""`HEAD` for every route that has `GET`: the same response without its body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
