"""uvicorn's HTTP protocol with limits on the head of a request, on the bytes parsed at a time, and on the time that a
client may leave data unread. Responses also reach clients that uvicorn would cut off.

It is built on httptools. h11 has some of these limits, but takes a hundred times as long for a body in small chunks.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import is_ssl

from asr_server.net.loop_time import SLICE_S, slice_queue

# Limits for the head of a request, as in other servers, and for the framing between two chunks of a body.
_HEAD_BYTES, _HEADERS = 64 * 1024, 256
# How long the rest of a body is read after a response that closes the connection, and after one that keeps it open.
_LINGER_S, REST_S = 5.0, 30.0
# Bytes parsed at a time. 4 KiB can hold 200 requests; the larger part is for a body of known length, which holds none.
_PART_BYTES, _BODY_PART_BYTES = 4 * 1024, 64 * 1024
# The time that a pipelined request counts for in a round of the event loop.
_REQUEST_S = 0.001
# The pause before a pipelined request and after each slice of a connection that sends without end. It keeps the
# connection's share of the event loop small.
REQUEST_REST_S, SLICE_REST_S = 0.01, 0.002
# A client that leaves data unread for this long counts as gone. A slow client shows no progress until it has read most
# of its system's buffer, often 128 KiB: a limit of 60 s cut off a client that read 2 KB a second.
UNREAD_S = 180
# The kernel's send buffer. By default it holds megabytes, and data in it counts as sent.
_UNSENT_BYTES = 128 * 1024


def _tcp(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Return the socket of a TCP connection, or None for other connections."""
    peer = transport.get_extra_info("socket")
    return peer if peer is not None and peer.family in (socket.AF_INET, socket.AF_INET6) else None


class _Flow(FlowControl):
    """Flow control that pauses parsing together with reading. Reading resumes when everything is parsed."""

    def __init__(self, transport: asyncio.Transport, parse: Callable[[], None]) -> None:
        super().__init__(transport)
        self._parse = parse
        self.is_held = False

    def pause_reading(self) -> None:
        self.is_held = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Parse the rest in a later round: uvicorn calls this while it ends a response."""
        if self.is_held:
            self.is_held = False
            asyncio.get_running_loop().call_soon(self._parse)

    def set_reading(self, *, is_on: bool) -> None:
        """Pause or resume reading, but not parsing."""
        if not self._transport.is_closing():
            (super().resume_reading if is_on else super().pause_reading)()


class _Answer:
    """uvicorn's `send` of one request, changed so that responses reach the client.

    HTTP/1.0 has no chunks, so a response without a length ends with the connection. If a response closes the connection
    before the whole declared body has arrived, the rest of the body is read: otherwise a TCP reset could overtake the
    response. Sending the last message returns when everything is written, so an unread response counts as work of
    its caller.
    """

    def __init__(self, cycle: RequestResponseCycle, send: Any) -> None:
        self._cycle, self._send = cycle, send
        self._is_http_10 = cycle.scope["http_version"] == "1.0"
        self._ends_with_connection = False
        if self._is_http_10:
            cycle.waiting_for_100_continue = False

    async def send(self, message: Any) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            cycle.disconnected = cycle.transport.is_closing()  # a client that has only ended its side still reads
            names = {name.lower() for name, _ in message.get("headers", [])}
            if self._is_http_10 and b"content-length" not in names:
                self._ends_with_connection, cycle.chunked_encoding = True, False
        else:
            if self._ends_with_connection:
                cycle.expected_content_length = len(message.get("body", b""))
            if not message.get("more_body"):
                # The end is a message of its own: uvicorn then starts the next request.
                await self._send({**message, "more_body": True})
                await self._written()
                if self._is_sender_cut_off():
                    await self._read_rest()
                message = {"type": "http.response.body", "body": b""}
                if not cycle.keep_alive:
                    self._hold_back()
        await self._send(message)

    def _hold_back(self) -> None:
        """Let the kernel send the end of the response together with the end of the connection.

        If shutdown began after the head was sent, the head does not announce that the connection ends. A client that
        received the end of the response first could send its next request into the closed connection and get a reset.
        """
        transport = self._cycle.transport
        if not transport.is_closing() and (peer := _tcp(transport)) is not None:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # until the connection is closed, or 0.2 s

    async def _written(self) -> None:
        transport = self._cycle.transport
        if not transport.is_closing() and transport.get_write_buffer_size():
            transport.set_write_buffer_limits(1, 0)  # writing is paused until everything is written
            await self._cycle.flow.drain()
            if not transport.is_closing():
                transport.set_write_buffer_limits()

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
    """uvicorn's protocol with limits.

    uvicorn parses all received bytes at once, queues every request in them, buffers a head of any length, waits forever
    for a client to read, and stops its keep-alive timer at the first byte of a request.

    This class parses in parts, lets other connections run in between, and stops while a request is queued. A head has a
    maximum size and must be complete within the keep-alive time. An offer to upgrade to another protocol (`h2c` by
    Java's client, `TLS` by Apache's) is ignored, as HTTP allows.
    """

    flow: _Flow
    _unparsed = b""
    _behind_upgrade = b""  # bytes that arrived with the handshake of a WebSocket
    _body_left = 0  # bytes missing from the current body; 0 if its length is unknown
    _framing_bytes = 0  # bytes since the last head, chunk of a body, or end of a request
    _head_timer: asyncio.TimerHandle | None = None
    _has_head = _has_ignored_upgrade = False  # of the current request
    _has_end = False  # the client has ended its side
    # Greedy once there was more to parse than fits into a slice: then new data queues behind other connections.
    _is_greedy = _is_turn_due = False
    _is_pipelined = False  # the request being started arrived before the previous response ended
    _running: RequestResponseCycle | None = None  # the request being answered; `cycle` is the last one parsed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the timer for the first head, and set the limits for an unread response."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._parse)
        if (peer := _tcp(transport)) is not None:
            # The kernel's limit also covers data that has left the buffers of this process.
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._start_timer(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        self._unparsed += data
        if self._is_greedy and slice_queue().waiting:
            self._parse_soon()
        self._parse()

    def _parse_soon(self) -> None:
        if not self._is_turn_due:
            self._is_greedy = self._is_turn_due = True
            self.loop.call_later(SLICE_REST_S, slice_queue().soon, self._parse_in_turn)

    def _parse_in_turn(self) -> None:
        self._is_turn_due = False
        self._parse()

    def _may_parse(self) -> bool:
        return bool(self.parser and not self.flow.is_held and not self._is_turn_due and not self.transport.is_closing())

    def _parse(self) -> None:
        data, at, ends_s = self._unparsed, 0, time.monotonic() + SLICE_S
        while at < len(data) and self._may_parse():
            if self.pipeline:
                self.flow.pause_reading()  # until the current response ends
            elif at and time.monotonic() > ends_s:
                self._parse_soon()
            else:
                part = data[at : at + max(_PART_BYTES, min(self._body_left, _BODY_PART_BYTES))]
                at += len(part)
                self._feed(part)
        self._unparsed = data[at:]
        if self.parser:
            self.flow.set_reading(is_on=not self._unparsed and not self.flow.is_held)
        elif rest := self._behind_upgrade + self._unparsed:
            # A client should wait for the handshake. If it does not, its bytes must not be lost.
            self._behind_upgrade = self._unparsed = b""
            cast("asyncio.Protocol", self.transport.get_protocol()).data_received(rest)

    def _feed(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._has_ignored_upgrade:
                head = [
                    b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
                ]
                head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
                # Made as uvicorn makes it. The old parser takes nothing after an HTTP/1.0 request.
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self._feed(b"\r\n".join([*head, b"", data[upgrade.args[0] :]]))
            elif self._should_upgrade():
                self._behind_upgrade = data[upgrade.args[0] :]
                self.handle_websocket_upgrade()
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
        if self._framing_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def handle_websocket_upgrade(self) -> None:
        """Hand over to the WebSocket protocol, unless a response is still being written."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self._stop_timer()
        super().handle_websocket_upgrade()
        self.parser = None  # type: ignore[assignment]  # this protocol receives nothing any more

    def on_message_begin(self) -> None:
        self._has_head = self._has_ignored_upgrade = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Drop trailers, which follow a chunked body: access was decided by the head (RFC 9110, 6.5.1).
        The parser answers a ValueError with 400."""
        if self._has_head:
            return
        # A request with two hosts is invalid (RFC 9112, 3.2): a proxy may have used the other one.
        if len(self.headers) == _HEADERS or (name.lower() == b"host" and name.lower() in dict(self.headers)):
            raise ValueError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the complete head."""
        self._has_head = True
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > _HEAD_BYTES:
            raise ValueError(size)
        self._framing_bytes = 0
        # The parser would end a request with an ignored offer at its head. `_feed` parses that head without the offer.
        self._has_ignored_upgrade = (
            self.parser.should_upgrade()
            and not self._should_upgrade()
            and any(name == b"upgrade" for name, _ in self.headers)
        )
        if not self._has_ignored_upgrade:
            self._stop_timer()
            self._body_left = int(dict(self.headers).get(b"content-length", 0))  # the parser has checked it
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._framing_bytes = 0
        if self._has_ignored_upgrade:
            return
        if self.cycle is not None and self.cycle.response_complete:  # this was the rest of an unread body
            self._start_timer(self.timeout_keep_alive)
        super().on_message_complete()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Cancel the request. The client has left, or has only ended its side, which looks the same."""
        if self.cycle is None or self.cycle.response_started or self.pipeline or is_ssl(self.transport):
            return None  # closes the connection
        self.cycle.keep_alive = self.cycle.more_body = False
        self._has_end = True
        self.cycle.disconnected = True  # for the app's `receive`; a response is still sent, see `_Answer`
        self.cycle.message_event.set()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        is_pipelined = self._is_pipelined

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            try:
                if is_pipelined:
                    await asyncio.sleep(REQUEST_REST_S)
                    await slice_queue().next(_REQUEST_S)
                await app(scope, receive, _Answer(cycle, send).send)
            finally:
                # If the client ended its side, the app need not respond. An app that returns in the middle of a
                # response has cut it off and logged why.
                is_cut_off = not cycle.response_complete and (self._has_end or cycle.response_started)
                if cycle.disconnected or is_cut_off:
                    cycle.disconnected = True
                    cycle.transport.close()

        self._running = cycle
        super()._start_asgi_task(cycle, answer)

    def on_response_complete(self) -> None:
        """Start the timer for the rest of the body or for the next head, unless that has already arrived."""
        self._is_pipelined = bool(self.pipeline)
        super().on_response_complete()
        self._is_pipelined = False
        if self.cycle.response_complete:
            self._start_timer(REST_S if self.cycle.more_body else self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop a closed connection's data. Notify the running request: uvicorn notifies only the last one parsed."""
        self._stop_timer()
        self._unparsed = b""
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_timer(self, timeout_s: float) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(timeout_s, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
