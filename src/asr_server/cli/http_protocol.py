"""uvicorn's HTTP protocol with limits: for the size of a request's head, and for the time until it is complete."""

from __future__ import annotations

import asyncio
import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Limit for the head of a request, as in other servers, and for the framing between two chunks of a body.
_HEAD_BYTES = 64 * 1024
_END_OF_LINE, _END_OF_HEAD = b"\r\n", b"\r\n\r\n"
_OTHER_UPGRADES = re.compile(rb"\r\nupgrade:(?![ \t]*websocket[ \t]*\r\n)[^\r\n]*(?=\r\n)", re.IGNORECASE)


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's parser buffers a head of any length, and its keep-alive timer ends with the first byte of a request.

    Here a head has a maximum size, and must be complete within the keep-alive time. An offer to upgrade to another
    protocol (`h2c` by Java's client, `TLS` by Apache's) is ignored, as HTTP allows: after one, the parser would end the
    request, and its body would be lost.
    """

    _framing_bytes = 0  # received since the last head, chunk of a body, or end of a request
    _head_timer: asyncio.TimerHandle | None = None
    _is_idle = True  # no byte of the next request has come

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the timer for the first head."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the peer."""
        self._framing_bytes += len(data)
        super().data_received(_without_upgrades(data) if self._is_idle else data)
        if self._framing_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._is_idle = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete. The parser answers a ValueError with 400."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > _HEAD_BYTES:
            raise ValueError(size)
        self._stop_timer()
        self._framing_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A chunk of a body."""
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._framing_bytes, self._is_idle = 0, True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the timer for the next head, unless that has arrived already."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()


def _without_upgrades(data: bytes) -> bytes:
    """`data` without the header lines that offer other protocols. It begins with a head, nearly always a whole one."""
    end = data.find(_END_OF_HEAD)
    head = data if end < 0 else data[: end + len(_END_OF_LINE)]
    return _OTHER_UPGRADES.sub(b"", head) + data[len(head) :]
