"""The frames of one client connection to a live session, both ways, while its worker lives.

Frames of the client go into the session's buffer; a task sends what is in the buffer to the worker. So the client can
go on sending while a worker ends and the next one starts.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from starlette.types import Scope
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from asr_server.core.errors import InvalidInput, SessionTaken
from asr_server.features.gateway.carried_session import CarriedSession
from asr_server.features.gateway.sockets import CLEAN, UNCLEAN, Closed
from asr_server.features.gateway.worker import WorkerConnection
from asr_server.live.actions import parse_action
from asr_server.live.machine.cutting import pieces
from asr_server.net.errors import live_error_message
from asr_server.net.loop_time import TimeSlice
from asr_server.net.shared_bytes import PIECE_BYTES, QUEUE_BYTES, Share
from asr_server.net.websocket_io import DISCARD, MOVED, closed_cleanly
from asr_server.text import languages

_LEAVE_GRACE_S = 0.25
_LAST_FRAMES_S = 1.0


@dataclass(eq=False, slots=True)
class RelayedSession:
    """A session that outlives its connections to clients and to workers. At most one connection has it at a time."""

    carried: CarriedSession
    worker: WorkerConnection
    share: Share  # the memory that it holds of the limit for all sessions
    scope: Scope  # of the last connection
    query: list[tuple[str, str]]  # of the first connection, but with the key of the last, if the query has it
    lease: ExitStack  # keeps the worker from being idle, and the session's place
    began_s: float  # when the client's audio began, by the monotonic clock
    owner: str = ""  # the owner of the key that opened it, "" where there are no keys
    resumes: int = 0  # how often a connection asked for it again
    client: WebSocket | None = None  # the present connection
    expiry: asyncio.TimerHandle | None = None
    connection_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the connection that has the session
    takeover_requested: asyncio.Event = field(default_factory=asyncio.Event)
    # Both are hints to look again: they may be set when there is nothing to send, or no room.
    may_send: asyncio.Event = field(default_factory=asyncio.Event)
    may_have_room: asyncio.Event = field(default_factory=asyncio.Event)

    async def take_over(self) -> None:
        """Become the connection that has the session.

        The previous connection of a client that came back at once has a moment to end by itself. If it does not, it is
        asked to: its client may be gone without a close frame. Raises `SessionTaken` if one more connection asks for
        the session while this one waits: the last of many gets it, and the others do not have it in between.
        """
        self.resumes = mine = self.resumes + 1
        while True:
            try:
                async with asyncio.timeout(_LEAVE_GRACE_S):
                    await self.connection_lock.acquire()
            except TimeoutError:
                # Again after each wait: another connection may have taken it, and cleared the event, before this one.
                self.takeover_requested.set()
            else:
                self.takeover_requested.clear()
                if self.resumes == mine:
                    return
                self.connection_lock.release()
            if self.resumes != mine:
                raise SessionTaken("The session goes on over another connection.")

    def account(self) -> None:
        """Update the account of the memory that this session holds."""
        self.share.set(self.carried.input.held_bytes)

    async def wait_for_room(self) -> None:
        """Return when the worker has taken enough that the client may send more."""
        held = self.carried.input
        # What the worker has taken is bounded there, and is held here until it has its final: to wait for that would
        # be to wait for audio that the client must not send.
        while held.unsent_bytes > self.share.of.queue_bytes or held.held_bytes > QUEUE_BYTES:
            self.may_have_room.clear()
            await self.may_have_room.wait()


@dataclass(frozen=True, slots=True)
class Left:
    """The end of a client's connection."""

    clean: bool
    moved: bool  # the client goes on with another server


async def read_client(client: WebSocket, session: RelayedSession) -> Left:
    """Put the client's frames into the session's buffer until the client is gone.

    Raises `Overloaded` for a large frame that does not fit; nothing of it counts as received.
    """
    while True:
        message = await client.receive()
        if message["type"] == "websocket.disconnect":
            return Left(closed_cleanly(message), message.get("code") == MOVED)
        if (pcm := message.get("bytes")) is not None:
            with session.share.of.in_hand(len(pcm)):
                for piece in pieces(pcm, PIECE_BYTES):
                    # While the buffer is full the client's socket is not read, so that TCP slows the client down.
                    await session.wait_for_room()
                    session.carried.add_audio(piece, time.monotonic())
                    session.may_send.set()
                    session.account()
        else:
            await session.wait_for_room()
            await _take_action(client, session, message.get("text") or "")
            session.may_send.set()
            session.account()


async def _take_action(client: WebSocket, session: RelayedSession, text: str) -> None:
    """Process one text frame. Actions that need no worker are answered here, with the same messages as a worker's."""
    try:
        action = parse_action(text)
        if action.action == "ping":
            await client.send_json({"status": "pong"})
            return
        if action.action == "config" and action.language is not None:
            languages.normalize(action.language)  # raises for an unknown language
        session.carried.add_action(action.action, text)
    except InvalidInput as error:
        session.carried.add_refused_action()
        await client.send_json(live_error_message(error))


async def relay(
    client: WebSocket, session: RelayedSession, upstream: ClientConnection, reader: asyncio.Task[Left]
) -> Closed | None:
    """Relay until one side ends. Returns how the worker ended, or None if the client did.

    When the client ends, the worker's connection is closed in the same way. `reader` runs `read_client`; it outlives
    this call when the worker ends. Raises `SessionTaken`.
    """
    sender = asyncio.create_task(_send_to_worker(session, upstream))
    receiver = asyncio.create_task(_receive_from_worker(client, session, upstream))
    takeover = asyncio.create_task(session.takeover_requested.wait())
    try:
        await asyncio.wait({reader, receiver, takeover}, return_when=asyncio.FIRST_COMPLETED)
        if takeover.done():
            raise SessionTaken("The session goes on over another connection.")
        if receiver.done():
            return receiver.result()
        # Before the last frames: two senders would take frames from the buffer in turn and mix their order.
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        await _pass_on_end(session, upstream, reader.result())
        return None
    finally:
        for task in (sender, receiver, takeover):
            task.cancel()
        await asyncio.gather(sender, receiver, takeover, return_exceptions=True)


async def _send_to_worker(session: RelayedSession, upstream: ClientConnection) -> None:
    """Send the buffer to the worker. Returns when the connection is closed, which `_receive_from_worker` reports."""
    time_slice = TimeSlice()
    while True:
        # Cleared before the buffer is read: a frame that comes in between sets it again.
        session.may_send.clear()
        while (frame := session.carried.input.next_frame()) is not None:
            try:
                await upstream.send(frame)
            except ConnectionClosed:
                return
            session.may_have_room.set()
            await time_slice.next_round()
        await session.may_send.wait()


async def _receive_from_worker(client: WebSocket, session: RelayedSession, upstream: ClientConnection) -> Closed:
    """Send the worker's messages to the client. Returns how the worker ended the connection."""
    while True:
        try:
            raw = await upstream.recv()
        except ConnectionClosed as closed:
            return Closed.of(closed)
        message = session.carried.on_message(str(raw))
        session.account()
        session.may_have_room.set()  # a continuation lets the buffer forget what comes before it
        if message is not None:
            await client.send_text(message)


async def _pass_on_end(session: RelayedSession, upstream: ClientConnection, left: Left) -> None:
    """Send the worker the last frames of a client that is gone, and close the connection as the client did."""
    if left.moved:
        await upstream.close(DISCARD)
        return
    try:
        async with asyncio.timeout(_LAST_FRAMES_S):
            while (frame := session.carried.input.next_frame()) is not None:
                await upstream.send(frame)
    except (TimeoutError, ConnectionClosed):
        pass  # the rest is sent when the client comes back
    if left.clean:
        session.carried.add_end()
    await upstream.close(CLEAN if left.clean else UNCLEAN)
