"""uvicorn's WebSocket protocol with limits: one connection can neither stop the others nor stay for ever.

`ws_max_size` limits the bytes of a message, and uvicorn stops reading while a message waits for the app. There are no
settings for the rest (`ws_max_queue` belongs to another implementation): uvicorn parses all that has been received at
once, up to 256 KiB, which may be 40,000 frames.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode

from asr_server.service.turns import SLICE_S, TimeSlice, turns

# A peer that has not read the close frame after this time never will. The connection is then aborted.
_ABORT_AFTER_S = 4.0
# How long the peer's answer to a close frame is waited for. It comes after everything that the peer had sent before; a
# peer from which the app took no message was refused, and has nothing to lose.
_REFUSED_CLOSE_S, _CLOSE_S = 2.0, 10.0
# The frames in which that answer is looked for: far more than are on their way when the close frame arrives. A peer
# that was refused has hardly begun.
_FRAMES_AFTER_CLOSE, _FRAMES_AFTER_REFUSAL = 10_000, 64
# Frames that a connection may send in a second, and at once after a rest; then it is read later. Audio comes in at most
# 100 frames a second from a microphone. A text frame costs as much of the event loop as several of audio, and a further
# frame of a message hardly anything. So many bytes of text, and of audio, cost as much as a frame.
_FRAMES_PER_S, _MOST_FRAMES = 1_000, 1_000
_COSTS = {Opcode.TEXT: 10.0, Opcode.CONT: 0.1}
_TEXT_BYTES, _AUDIO_BYTES = 2 * 1024, 64 * 1024
# Where audio is binary, text is what a user has done: flush, reset, other settings.
_ACTIONS, _ACTION = frozenset({"/ws/transcribe"}), 50.0
# A message has to be complete in that time: what has arrived of it is held.
_MESSAGE_S = 20.0
# Bytes of unfinished messages, of all connections of a caller: the largest message, and many of the usual size.
_UNFINISHED_BYTES = 34 * 2**20
# Bytes that are parsed between two looks at the clock: few, which may be 80 frames, or inside of a long frame more.
_PART_BYTES, _MAX_PART_BYTES = 512, 4 * 1024
# Frames of one message. Each takes some 100 bytes, also an empty one, which `ws_max_size` does not count.
_MAX_FRAGMENTS = 16 * 1024
_TOO_BIG, _POLICY = 1009, 1008
# Bytes of unfinished messages by caller: its key or address.
_held: Counter[str] = Counter()
_NO_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class _Unfinished:
    """Counts what has arrived of a message without its end, and for how long it has been waited for."""

    def __init__(self) -> None:
        self.timer: asyncio.TimerHandle | None = None
        self._bytes, self._caller = 0, ""

    def holds(self, scope: Mapping[str, Any], size: int) -> bool:
        """Count that many bytes for the caller of the connection; return False where it has too many."""
        caller = scope["state"].get("caller")
        self._caller = caller.share if caller is not None else ""
        _held[self._caller] += size - self._bytes
        self._bytes = size
        return _held[self._caller] <= _UNFINISHED_BYTES

    def end(self) -> None:
        """Count nothing any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        _held[self._caller] -= self._bytes
        if not _held[self._caller]:
            del _held[self._caller]
        self._bytes = 0


class SocketProtocol(WebSocketsSansIOProtocol):
    """Received data is parsed in slices of time, each in a turn of the event loop, and each part of it after the app
    has received all messages of the one before. Nothing is parsed before the handshake is complete, nor while the peer
    does not read: pings would be answered, and the answers held. Meanwhile the socket is not read.

    A connection that sends more frames than real audio has is read later, so that it does not take the event loop, and
    with it the interpreter, from everybody else. Unfinished messages have bounds in time and, for a caller's
    connections together, in bytes.

    `transport.close` waits until all data is sent; for a peer that never reads, that is forever. So connections are
    aborted after a while.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.close_timeout = _REFUSED_CLOSE_S
        self._unparsed = bytearray()
        self._part_bytes = _PART_BYTES
        # True if there was more to parse at once than fits into a slice; from then on parsing waits for turns.
        self._is_greedy = self._is_turn_due = False
        self._frames_after_close = 0
        self._app_slice = TimeSlice()
        self._frames_left, self._counted_s = float(_MOST_FRAMES), time.monotonic()
        self._pause: asyncio.TimerHandle | None = None  # while too many frames were sent
        self._message_bytes = 0  # in `frames`
        self._unfinished = _Unfinished()

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the peer."""
        if self.handshake_initiated:
            self._unparsed += data
            if self._is_greedy and turns().are_awaited:
                self._parse_soon()
            self._parse()
            return
        # uvicorn passes the whole head at once. After one that is too large or has a body it would wait forever.
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(b"".join(self.conn.data_to_send()) or _NO_HANDSHAKE)
            self.transport.close()

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        self._parse_soon()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message for the app. Messages that wait already are given without waiting, but in slices of
        time."""
        await self._app_slice.next_round()
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self.close_timeout = _CLOSE_S
        self._parse()
        return message

    def _parse(self) -> None:
        ends_s = time.monotonic() + SLICE_S
        while self._unparsed and self._may_parse():
            if time.monotonic() >= ends_s:
                self._parse_soon()
                break
            part = self._unparsed[: self._part_bytes]
            del self._unparsed[: len(part)]
            super().data_received(part)  # type: ignore[arg-type]  # which only appends it
        if self.transport.is_closing():
            self._unparsed.clear()
            self._unfinished.end()
        elif self._unparsed:
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _may_parse(self) -> bool:
        return (
            self.handshake_complete
            and self.writable.is_set()
            and not self.read_paused
            and not self._is_turn_due
            and self._pause is None
            and not (self._is_refused and self._frames_after_close > _FRAMES_AFTER_REFUSAL)
            and not self.transport.is_closing()
        )

    @property
    def _is_refused(self) -> bool:
        """Return whether the app has ended the connection without taking a message."""
        return self.close_sent and self.close_timeout == _REFUSED_CLOSE_S

    def _cost(self, frame: Frame) -> float:
        """Return for how many frames of audio one counts."""
        opcode = frame.opcode
        is_text = opcode is Opcode.TEXT or (opcode is Opcode.CONT and self.curr_msg_data_type == "text")
        if opcode is Opcode.TEXT and self.scope["path"] in _ACTIONS:
            return _ACTION
        return _COSTS.get(opcode, 1.0) + len(frame.data) / (_TEXT_BYTES if is_text else _AUDIO_BYTES)

    def _count(self, frames: float) -> None:
        """Pause the reading where the frames were too many."""
        now_s = time.monotonic()
        rested = self._frames_left + (now_s - self._counted_s) * _FRAMES_PER_S
        self._frames_left, self._counted_s = min(rested, _MOST_FRAMES) - frames, now_s
        # A process that connects by a local socket is a part of this server, which has counted already.
        if self._frames_left < 0 and self._pause is None and self.client is not None:
            self._pause = self.loop.call_later(-self._frames_left / _FRAMES_PER_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._parse()

    def _parse_soon(self) -> None:
        if not self._is_turn_due:
            self._is_greedy = self._is_turn_due = True
            turns().soon(self._parse_in_turn)

    def _parse_in_turn(self) -> None:
        self._is_turn_due = False
        self._parse()

    def handle_events(self) -> None:
        """Handle what was parsed. A peer that sends without end after the close frame does not read it."""
        self._part_bytes = _PART_BYTES if self.conn.events else min(2 * self._part_bytes, _MAX_PART_BYTES)
        self._count(sum(self._cost(event) for event in self.conn.events if isinstance(event, Frame)))
        if self.close_sent:
            self._frames_after_close += len(self.conn.events)
            if self._frames_after_close > _FRAMES_AFTER_CLOSE:
                self.transport.close()
        super().handle_events()
        if self.handshake_complete and not self.close_sent:
            self._check_unfinished()

    def _check_unfinished(self) -> None:
        """Close the connection where too much of messages waits for their ends, or for too long."""
        size = self._message_bytes + len(self.conn.reader.buffer)
        if not size and not self.frames:  # which may be empty
            self._unfinished.end()
        elif not self._unfinished.holds(self.scope, size):
            self._end_message(_TOO_BIG, "too many bytes of unfinished messages")
        elif self._unfinished.timer is None:
            self._unfinished.timer = self.loop.call_later(_MESSAGE_S, self._end_message, _POLICY, "unfinished message")

    def _end_message(self, code: int, reason: str) -> None:
        """Fail the connection, and forget what has arrived of a message."""
        if not self.transport.is_closing() and not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()
        self._forget()

    def handle_text(self, event: Any) -> None:
        """The first frame of a message."""
        self._message_bytes = len(event.data)
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        """The first frame of a message."""
        self._message_bytes = len(event.data)
        super().handle_bytes(event)

    def handle_cont(self, event: Any) -> None:
        """The next frame of a message."""
        if len(self.frames) < _MAX_FRAGMENTS:
            self._message_bytes += len(event.data)
            super().handle_cont(event)
        elif not self.transport.is_closing():
            self.conn.fail(_TOO_BIG, "too many fragments")
            self.handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """A message is complete. For text that is not UTF-8 uvicorn sends a close frame, which is an error where the
        peer's close frame was parsed with that text, and answered."""
        self._message_bytes = 0
        try:
            super().send_receive_event_to_app()
        except InvalidState:
            self.handle_parser_exception()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed. Its parser would keep the last frame, up to 32 MiB, until a garbage collection."""
        super().connection_lost(exc)
        if self._pause is not None:
            self._pause.cancel()
        self._forget()
        self.conn.parser.close()

    def _forget(self) -> None:
        self._unparsed.clear()
        self.frames.clear()
        self._message_bytes = 0
        self._unfinished.end()

    def keepalive_timeout(self) -> None:
        """Close with 1011 since no pong came, and abort if the peer does not read that."""
        super().keepalive_timeout()
        self.loop.call_later(_ABORT_AFTER_S, self.transport.abort)

    async def send(self, message: ASGISendEvent) -> None:
        """Send the app's message. Raises `ClientDisconnected` where an error of the peer has closed the connection."""
        await self._app_slice.next_round()
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent:
                raise ClientDisconnected from None
            raise
        self._parse()  # frames after the handshake, or a close frame after data that the app will not receive
        if (
            self.close_sent
        ):  # also after a rejection with an HTTP status, which uvicorn would log as a missing handshake
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Run the app. The connection ends soon after it, whether or not the peer reads."""
        await super().run_asgi()
        self.loop.call_later(self.close_timeout + _ABORT_AFTER_S, self.transport.abort)
