"""uvicorn's HTTP protocol, but no peer can fill the memory with a head or keep a connection that asks nothing."""

from __future__ import annotations

import asyncio
import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Of a request's head, as other servers have it; and of what comes between the pieces of a body.
_HEAD_BYTES = 64 * 1024
_END_OF_LINE, _END_OF_HEAD = b"\r\n", b"\r\n\r\n"
_OTHER_UPGRADES = re.compile(rb"\r\nupgrade:(?![ \t]*websocket[ \t]*\r\n)[^\r\n]*(?=\r\n)", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """The parser keeps a head of any length, and uvicorn's keep-alive ends with the first byte of the next request.

    Here a head has a size, and must be there in the time for which an idle connection is kept. And an offer to speak
    another protocol (`h2c` by Java's own client, `TLS` by Apache's) is passed over, as HTTP allows: at one, the parser
    would take the request for over, and its body would be lost.
    """

    _fruitless_bytes = 0  # since the last head, piece of a body or end of a request
    _patience: asyncio.TimerHandle | None = None
    _between = True  # requests: no byte of the next one has come

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """The first head is waited for."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer."""
        self._fruitless_bytes += len(data)
        super().data_received(_without_offers(data) if self._between else data)
        if self._fruitless_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._between = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is there. What it raises, the parser takes for an invalid request."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > _HEAD_BYTES:
            raise ValueError(size)
        self._stop_waiting()
        self._fruitless_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._fruitless_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._fruitless_bytes, self._between = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The next head is waited for, unless it is there already."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()


def _without_offers(data: bytes) -> bytes:
    """What begins with a head, which is nearly always whole, without the lines that offer another protocol."""
    end = data.find(_END_OF_HEAD)
    head = data if end < 0 else data[: end + len(_END_OF_LINE)]
    return _OTHER_UPGRADES.sub(b"", head) + data[len(head) :]
