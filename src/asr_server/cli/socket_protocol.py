"""uvicorn's WebSocket protocol, but a peer that does not read cannot keep its connection. Not the app's side of it."""

from __future__ import annotations

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# A close frame that the peer does not take up in this time never will be; what is buffered for it is given up.
_ABORT_AFTER_S = 5.0


class SocketProtocol(WebSocketsSansIOProtocol):
    """`transport.close` waits until everything is sent, which for a peer that never reads is for ever."""

    def keepalive_timeout(self) -> None:
        """No pong came: close with 1011, and if that is not taken up, cut."""
        super().keepalive_timeout()
        self.loop.call_later(_ABORT_AFTER_S, self.transport.abort)

    async def send(self, message: ASGISendEvent) -> None:
        """To the app, a connection that was closed for what the peer sent is one that the peer left: not its fault."""
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent:
                raise ClientDisconnected from None
            raise
        if self.close_sent:  # by a refusal with an HTTP status too, which uvicorn would log as a forgotten handshake
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Run the app; its end is the end of the connection, whether or not the peer reads."""
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + _ABORT_AFTER_S, self.transport.abort)
