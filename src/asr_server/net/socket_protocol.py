"""uvicorn's WebSocket protocol with limits, so that one connection cannot block the others or stay open forever.

uvicorn limits the bytes of a message (`ws_max_size`) and stops reading while a message waits for the app. It has no
setting for the rest: it parses all received bytes at once, up to 256 KiB, which can be 40,000 frames.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from asr_server.net.loop_time import SLICE_S, ConnectionTime, TimeSlice, loop_time, measure, slice_queue

# Abort the connection if the peer has not read the close frame after this time.
_ABORT_AFTER_S = 4.0
# The longest wait for the peer's answer to a close frame, which follows everything that the peer sent before. A peer
# from which the app took no message was refused, and gets less time.
_REFUSED_CLOSE_S, _CLOSE_S = 2.0, 10.0
# Read at most this many frames while waiting for that answer: far more than can be in transit.
_FRAMES_AFTER_CLOSE, _FRAMES_AFTER_REFUSAL = 10_000, 64
# A text message with this type of event in its first bytes carries audio.
_AUDIO_EVENT, _EVENT_BYTES = b"input_audio_buffer.append", 256
# A message must be complete within this time, since its first part is held in memory.
MESSAGE_S = 20.0
# The most bytes of unfinished messages on all connections of a caller: one largest message and many usual ones.
UNFINISHED_BYTES = 34 * 2**20
# Bytes parsed between two checks of the clock: short frames together (up to 80 of them), or a part of one long frame.
_PART_BYTES, _MAX_PART_BYTES = 512, 4 * 1024
# The most frames of one message. Each takes some 100 bytes, even an empty one, which `ws_max_size` does not count.
_MAX_FRAGMENTS = 16 * 1024
_TOO_BIG, _POLICY = 1009, 1008
# Bytes of unfinished messages by caller (`Caller.share`).
_held: Counter[str] = Counter()
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class _Unfinished:
    """Counts the bytes of an unfinished message and holds the timer that limits its duration."""

    def __init__(self) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._bytes, self._caller = 0, ""

    def holds(self, scope: Mapping[str, Any], size: int) -> bool:
        """Count `size` bytes for the caller of the connection. Return False if the caller has too many."""
        caller = scope["state"].get("caller")
        self._caller = caller.share if caller is not None else ""
        _held[self._caller] += size - self._bytes
        self._bytes = size
        return _held[self._caller] <= UNFINISHED_BYTES

    def end(self) -> None:
        """Stop counting: the message is complete or dropped."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        _held[self._caller] -= self._bytes
        if not _held[self._caller]:
            del _held[self._caller]
        self._bytes = 0


def _frame_bytes(data: bytearray, at: int) -> int:
    """Return the length of the frame that begins at `at` (RFC 6455, 5.2), or 0 if its head is incomplete."""
    if len(data) < at + 2:
        return 0
    length, head = data[at + 1] & 127, 6 if data[at + 1] & 128 else 2
    if more := {126: 2, 127: 8}.get(length, 0):
        if len(data) < at + 2 + more:
            return 0
        length, head = int.from_bytes(data[at + 2 : at + 2 + more]), head + more
    return head + length


class SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with limits.

    Parses received data in time slices, one for each turn in the slice queue, and parses a part only after the app has
    received all messages of the previous part. Parses nothing before the handshake is complete, or while the peer does
    not read, since answers to its pings would pile up. Does not read the socket while received data waits.

    A connection whose caller has used up its share of the event loop is read later (`net/loop_time.py`). Unfinished
    messages are limited in time and, for all connections of a caller together, in bytes.

    `transport.close` waits until all data is sent, which is forever if the peer never reads. So connections are aborted
    after a while.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.close_timeout = _REFUSED_CLOSE_S
        self._unparsed = bytearray()
        self._frame_left = 0  # bytes left of a long frame whose beginning has been parsed
        # Greedy once there was more to parse than fits into a slice: then new data queues behind other connections.
        self._is_greedy = self._is_turn_due = False
        self._frames_after_close = 0
        self._app_slice = TimeSlice()
        self._loop_time = ConnectionTime(loop_time())
        self._is_late = False  # its caller has used too much time
        self._turn: asyncio.Future[None] | None = None  # set while `receive` holds back a message from the app
        self._message_bytes = 0  # in `frames`
        self._unfinished = _Unfinished()

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._unparsed += data
            # A greedy connection queues behind the others and parses nothing at once.
            if self._is_greedy and slice_queue().waiting:
                self._parse_soon()
            self._parse_and_count()
            return
        # uvicorn passes the whole head at once. After a head that is too large or has a body, it would wait forever.
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
            self.transport.close()

    def resume_writing(self) -> None:
        """Continue to parse: the peer reads again."""
        super().resume_writing()
        self._parse_soon()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message for the app. Give way after each time slice, since queued messages need no wait."""
        await self._app_slice.next_round()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self.close_timeout = _CLOSE_S
            if self._waits_for_time():
                self._turn = self.loop.create_future()
                await self._turn
        self._parse()
        return message

    def _parse_and_count(self) -> None:
        """Parse, and count the time. Not for calls from tasks: the time of tasks is counted already."""
        began_s = time.thread_time()  # processor time: the thread may wait for the interpreter meanwhile
        self._parse()
        self._loop_time.take(time.thread_time() - began_s)

    def _parse(self) -> None:
        ends_s, has_part = time.monotonic() + SLICE_S, True
        while self._unparsed and self._may_parse():
            if time.monotonic() >= ends_s:
                self._parse_soon()
                break
            part = self._next_part()
            if not (has_part := bool(part)):
                break
            super().data_received(part)  # type: ignore[arg-type]  # which only appends it
        if self.transport.is_closing():
            self._unparsed.clear()
            self._unfinished.end()
        elif self._unparsed and has_part:
            self.transport.pause_reading()  # the kernel's buffer fills up, and TCP makes the peer wait
        elif not self.read_paused:
            self.transport.resume_reading()

    def _next_part(self) -> bytearray:
        """Return some whole frames or a part of a long one, or nothing if the next frame's head is incomplete."""
        at = self._frame_left
        while at < _PART_BYTES and (frame := _frame_bytes(self._unparsed, at)):
            at += frame
        part = self._unparsed[: min(at, _MAX_PART_BYTES)]
        del self._unparsed[: len(part)]
        self._frame_left = at - len(part)
        return part

    def _may_parse(self) -> bool:
        return (
            self.handshake_complete
            and not self.transport.is_closing()  # checked early: a refused handshake has no scope
            and self.writable.is_set()
            and not self.read_paused
            and not self._is_turn_due
            and not self._is_late
            and not self._waits_for_time()
            and not (self._is_refused and self._frames_after_close > _FRAMES_AFTER_REFUSAL)
        )

    @property
    def _is_refused(self) -> bool:
        """Return True if the app has ended the connection without taking a message."""
        return self.close_sent and self.close_timeout == _REFUSED_CLOSE_S

    def _waits_for_time(self) -> bool:
        """Return True if the connection must be read later, and schedule that."""
        if self._loop_time.caller is None and (caller := self.scope["state"].get("caller")) is not None:
            self._loop_time.caller = loop_time().of(caller.share)
        if not self._is_late and self._loop_time.caller is not None and self._loop_time.is_over:
            self._is_late = True
            self._loop_time.caller.later(self._resume)
        return self._is_late

    def _resume(self) -> None:
        self._is_late = False
        self._resume_app()
        if not self.transport.is_closing():
            self._parse_and_count()

    def _resume_app(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def _parse_soon(self) -> None:
        if not self._is_turn_due:
            self._is_greedy = self._is_turn_due = True
            slice_queue().soon(self._parse_in_turn)

    def _parse_in_turn(self) -> None:
        self._is_turn_due = False
        self._parse_and_count()

    def handle_events(self) -> None:
        """Handle the parsed frames. Close the connection of a peer that sends forever after the close frame."""
        if self.close_sent:
            self._frames_after_close += len(self.conn.events)
            if self._frames_after_close > _FRAMES_AFTER_CLOSE:
                self.transport.close()
        super().handle_events()
        if self.handshake_complete and not self.close_sent:
            self._check_unfinished()

    def _check_unfinished(self) -> None:
        """Close the connection if unfinished messages have too many bytes or take too long."""
        size = self._message_bytes + len(self.conn.reader.buffer)
        if not size and not self.frames:  # a message may consist of empty frames so far
            self._unfinished.end()
        elif not self._unfinished.holds(self.scope, size):
            self._end_message(_TOO_BIG, "too many bytes of unfinished messages")
        elif self._unfinished.timer is None:
            self._unfinished.timer = self.loop.call_later(MESSAGE_S, self._end_message, _POLICY, "unfinished message")

    def _end_message(self, code: int, reason: str) -> None:
        """Fail the connection and drop its unfinished message."""
        if not self.transport.is_closing() and not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()
        self._forget()

    def handle_connect(self, event: Any) -> None:
        """Handle the handshake. Count the time of the app's tasks, even if they outlive the connection."""
        copy_context().run(self._begin, event)

    def _begin(self, event: Any) -> None:
        measure(self._loop_time)
        super().handle_connect(event)

    def handle_text(self, event: Any) -> None:
        self._message_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        self._message_bytes = len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Any) -> None:
        if len(self.frames) < _MAX_FRAGMENTS:
            self._message_bytes += len(event.data)
            super().handle_cont(event)
        elif not self.transport.is_closing():
            self.conn.fail(_TOO_BIG, "too many fragments")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """Hand a complete message to the app.

        If text is not UTF-8, uvicorn sends a close frame. That fails if the peer's close frame came in the same part
        and has been answered.
        """
        self._loop_time.worked()
        if self.curr_msg_data_type == "bytes" or _AUDIO_EVENT in self.frames[0][:_EVENT_BYTES]:
            self._loop_time.pay(self._message_bytes)
        self._message_bytes = 0
        try:
            super().send_receive_event_to_app()
        except InvalidState:
            self.handle_parser_exception()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop a closed connection's data. Its parser would keep a frame of up to 32 MiB until garbage collection."""
        super().connection_lost(exc)
        self._resume_app()
        self._forget()
        self.conn.parser.close()

    def _forget(self) -> None:
        self._unparsed.clear()
        self.frames.clear()
        self._message_bytes = 0
        self._unfinished.end()

    def keepalive_timeout(self) -> None:
        """Close with 1011 because no pong came, and abort if the peer does not read the close frame. If the connection
        is not being read, a pong may have arrived: wait again."""
        if self._is_late and self.ping_timeout is not None:
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.loop.call_later(_ABORT_AFTER_S, self.transport.abort)

    async def send(self, message: ASGISendEvent) -> None:
        """Send the app's message. Raises `ClientDisconnected` if the peer left before its handshake was answered, or if
        its protocol error has closed the connection."""
        await self._app_slice.next_round()
        if self.transport.is_closing() and not self.handshake_complete:
            # uvicorn would drop the answer and log that the app gave none.
            raise ClientDisconnected
        if message["type"] == "websocket.send" and (audio := message.get("bytes")):
            self._loop_time.worked()
            self._loop_time.pay(len(audio))
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent:
                raise ClientDisconnected from None
            raise
        self._parse()  # frames after the handshake, or a close frame after data that the app will not receive
        if self.close_sent:  # also after a rejection with an HTTP status: uvicorn would log a missing handshake
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Run the app. End the connection soon after it returns, whether or not the peer reads."""
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + _ABORT_AFTER_S, self.transport.abort)
