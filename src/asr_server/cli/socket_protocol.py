"""uvicorn's WebSocket protocol, but no peer can keep its connection or fill the memory. Not the app's side of it."""

from __future__ import annotations

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# A close frame that the peer does not take up in this time never will be; what is buffered for it is given up.
_ABORT_AFTER_S = 4.0
# Bytes that are parsed at a time. A message costs some 500 bytes until the app takes it, and the network brings up to
# 256 KiB at once: parsed whole, messages of one byte would become 20 MB.
_PART_BYTES = 4 * 1024
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class SocketProtocol(WebSocketsSansIOProtocol):
    """`transport.close` waits until everything is sent, which for a peer that never reads is for ever.

    What the network brings is parsed in parts, the next when the app has taken all messages of the last.
    """

    _unparsed = b""

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer."""
        self._unparsed += data
        self._parse()
        # uvicorn brings the whole head at once. It would wait for ever behind one that is too large, or has a body.
        if not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
            self.transport.close()

    async def receive(self) -> ASGIReceiveEvent:
        """The next message for the app."""
        message = await super().receive()
        self._parse()
        return message

    def _parse(self) -> None:
        data, at = self._unparsed, 0
        while at < len(data) and not self.read_paused and not self.transport.is_closing():
            part = data[at : at + _PART_BYTES]
            at += len(part)
            super().data_received(part)
        self._unparsed = data[at:]

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
        self._parse()  # the peer's close frame may be behind what the app does not want any more
        if self.close_sent:  # by a refusal with an HTTP status too, which uvicorn would log as a forgotten handshake
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Run the app; its end is the end of the connection, whether or not the peer reads."""
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + _ABORT_AFTER_S, self.transport.abort)
