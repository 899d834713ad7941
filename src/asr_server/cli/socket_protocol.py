"""uvicorn's WebSocket protocol with limits: for the time that closing takes, and for messages held in memory."""

from __future__ import annotations

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# A peer that has not read the close frame after this time never will. The connection is then aborted.
_ABORT_AFTER_S = 4.0
# Bytes that are parsed at a time. A message takes some 500 bytes until the app receives it, and up to 256 KiB arrive at
# once: parsed together, messages of one byte would become 20 MB.
_PART_BYTES = 4 * 1024
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class SocketProtocol(WebSocketsSansIOProtocol):
    """`transport.close` waits until all data is sent; for a peer that never reads, that is forever. So connections are
    aborted after a while.

    Received data is parsed in parts, each after the app has received all messages of the one before.
    """

    _unparsed = b""

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the peer."""
        self._unparsed += data
        self._parse()
        # uvicorn passes the whole head at once. After one that is too large or has a body it would wait forever.
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
        """No pong came: close with 1011, and abort if the peer does not read that."""
        super().keepalive_timeout()
        self.loop.call_later(_ABORT_AFTER_S, self.transport.abort)

    async def send(self, message: ASGISendEvent) -> None:
        """Send the app's message. Raises `ClientDisconnected` where an error of the peer has closed the connection."""
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent:
                raise ClientDisconnected from None
            raise
        self._parse()  # the peer's close frame may follow data that the app will not receive any more
        if (
            self.close_sent
        ):  # also after a rejection with an HTTP status, which uvicorn would log as a missing handshake
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Run the app. The connection ends soon after it, whether or not the peer reads."""
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + _ABORT_AFTER_S, self.transport.abort)
