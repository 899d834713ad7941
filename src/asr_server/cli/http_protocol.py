"""uvicorn's HTTP protocol with limits for the head of a request, and with answers that reach every client."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import is_ssl

# Limit for the head of a request, as in other servers, and for the framing between two chunks of a body.
_HEAD_BYTES = 64 * 1024
# How long the rest of a body is read behind an answer that closes the connection.
_LINGER_S = 5.0
_END_OF_LINE, _END_OF_HEAD = b"\r\n", b"\r\n\r\n"
_OTHER_UPGRADES = re.compile(rb"\r\nupgrade:(?![ \t]*websocket[ \t]*\r\n)[^\r\n]*(?=\r\n)", re.IGNORECASE)


class _Answer:
    """uvicorn's `send` of one request, for answers that reach their client.

    An answer to HTTP/1.0 is not sent in chunks, which that version does not have: one without a length ends with the
    connection. An answer that closes the connection before the declared body has come is followed by reading the rest,
    since the reset that the sender would get may overtake the answer.
    """

    def __init__(self, cycle: RequestResponseCycle, send: Any) -> None:
        self._cycle, self._send = cycle, send
        self._is_http_10 = cycle.scope["http_version"] == "1.0"
        self._ends_with_connection = False
        if self._is_http_10:
            cycle.waiting_for_100_continue = False

    async def send(self, message: Any) -> None:
        """As `send` of ASGI."""
        cycle = self._cycle
        if message["type"] == "http.response.start":
            cycle.disconnected = cycle.transport.is_closing()  # not by an end of the client's side alone
            names = {name.lower() for name, _ in message.get("headers", [])}
            if self._is_http_10 and b"content-length" not in names:
                self._ends_with_connection, cycle.chunked_encoding = True, False
        else:
            if self._ends_with_connection:
                cycle.expected_content_length = len(message.get("body", b""))
            if not message.get("more_body") and self._is_sender_cut_off():
                await self._send({**message, "more_body": True})
                await self._read_rest()
                message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    def _is_sender_cut_off(self) -> bool:
        cycle = self._cycle
        return (
            cycle.more_body and not cycle.keep_alive and any(n == b"content-length" for n, _ in cycle.scope["headers"])
        )

    async def _read_rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while self._cycle.more_body and not self._cycle.disconnected:
                    await self._cycle.receive()


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's parser buffers a head of any length, and its keep-alive timer ends with the first byte of a request.

    Here a head has a maximum size, and must be complete within the keep-alive time. An offer to upgrade to another
    protocol (`h2c` by Java's client, `TLS` by Apache's) is ignored, as HTTP allows: after one, the parser would end the
    request, and its body would be lost.
    """

    _framing_bytes = 0  # received since the last head, chunk of a body, or end of a request
    _head_timer: asyncio.TimerHandle | None = None
    _is_idle = True  # no byte of the next request has come
    _has_head = False  # of the present request

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
        self._is_idle = self._has_head = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header. Trailers, which come behind a body in chunks, are dropped: they are no part of the head, by which
        access was decided (RFC 9110, 6.5.1)."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete. The parser answers a ValueError with 400."""
        self._has_head = True
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

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more: it has left, or only ended its side, which looks the same and is cancelled too."""
        if self.cycle is None or self.cycle.response_started or self.pipeline or is_ssl(self.transport):
            return None  # closes the connection
        self.cycle.keep_alive = self.cycle.more_body = False
        self.cycle.disconnected = True  # for the app's `receive`; an answer is still sent, see `_Answer`
        self.cycle.message_event.set()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, _Answer(cycle, send).send)
            finally:
                if cycle.disconnected:  # by the end of its side alone, and the app did not answer
                    cycle.transport.close()

        super()._start_asgi_task(cycle, answer)

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
