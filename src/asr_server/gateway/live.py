"""`WS /ws/transcribe` through the gateway: one session for the client, whatever becomes of the worker.

What the client sends goes into the session's journal and from there to the worker; when the worker dies, a session in
the next one gets what is not done with. What is sent again and what may be told decides `live_replay.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from asr_server.api.errors import TABLE, http_response, live_error_message
from asr_server.api.live.actions import parse_action, parse_query
from asr_server.api.websocket_io import closed_cleanly
from asr_server.core.errors import AsrError, InvalidInput, SessionTaken, WorkerLost
from asr_server.gateway.client_input import ActionKind
from asr_server.gateway.live_replay import LiveReplay
from asr_server.gateway.sockets import (
    CLEAN,
    UNCLEAN,
    Closed,
    Refused,
    WorkerGone,
    closing,
    connect,
    end,
    pump,
    sendable,
)
from asr_server.gateway.worker import Worker, WorkerConnection
from asr_server.text import languages

# As much as a worker takes in before it stops reading.
_JOURNAL_BYTES = 32 * 1024 * 1024
_SESSIONS_KEPT = 256  # that wait for their clients
_ATTEMPTS = 3  # workers that one session may see die without moving on
_LEAVE_GRACE_S = 0.25
_LAST_FRAMES_S = 1.0
_GOODBYE_S = 5.0
_KEY = "token"  # in the query


@dataclass(eq=False, slots=True)
class _Session:
    """A session and whoever serves its client just now.

    `query`: that of the first connection, but with the key of the present one, which may be in its headers.
    """

    replay: LiveReplay
    link: WorkerConnection
    query: list[tuple[str, str]]
    hold: ExitStack  # keeps the worker from being idle
    owner: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)  # something to send, perhaps
    room: asyncio.Event = field(default_factory=asyncio.Event)  # something was forgotten, perhaps
    taken: asyncio.Event = field(default_factory=asyncio.Event)  # another connection wants it
    mine: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the connection that has the session
    timer: asyncio.TimerHandle | None = None


class LiveSockets:
    """An ASGI app. `keep_s`: for how long a session waits for its client."""

    def __init__(self, worker: Worker, keep_s: float) -> None:
        self._worker = worker
        self._keep_s = keep_s
        self._sessions: dict[str, _Session] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection."""
        socket = WebSocket(scope, receive, send)
        with self._worker.use():
            try:
                await self._serve(socket)
            except AsrError as error:
                await _end(socket, error)
            except Refused as refused:
                await end(socket, refused.response, Closed(UNCLEAN))
            except (WebSocketDisconnect, OSError):
                return

    async def _serve(self, socket: WebSocket) -> None:
        query = parse_qsl(socket.scope["query_string"].decode("latin-1"))
        try:
            asked = parse_query(dict(query))
        except InvalidInput:
            await self._begin(socket, query)  # the worker says what is wrong
            return
        session = self._sessions.get(asked.session_id)
        if session is None or session.owner != socket.state.caller.owner:
            await self._begin(socket, query)
        else:
            await self._resume(socket, session, query, asked.received)

    # -- the beginning of a connection -------------------------------------------------------------------------------

    async def _begin(self, socket: WebSocket, query: list[tuple[str, str]]) -> None:
        link, upstream, hello, raw = await self._reach(socket.scope, query)
        async with closing(upstream):
            await socket.accept()
            await socket.send_text(raw)
            if hello.get("status") != "connected":
                await _refuse(socket, upstream)
                return
        hold = ExitStack()
        hold.enter_context(self._worker.use())
        session = _Session(LiveReplay(hello), link, query, hold, socket.state.caller.owner)
        self._sessions[session.replay.id] = session
        await session.mine.acquire()
        await self._talk(socket, session, upstream)

    async def _resume(self, socket: WebSocket, session: _Session, query: list[tuple[str, str]], received: int) -> None:
        await _take_over(session)
        session.query = [pair for pair in session.query if pair[0] != _KEY] + [
            pair for pair in query if pair[0] == _KEY
        ]
        try:
            if session.timer is not None:
                session.timer.cancel()
            upstream, hello, raw = await self._reach_again(socket.scope, session, received)
            async with closing(upstream):
                await socket.accept()
                if hello.get("status") != "connected":
                    self._drop(session)
                    await socket.send_text(raw)
                    await _refuse(socket, upstream)
                    self._leave(session)
                    return
                await socket.send_text(session.replay.hello_for_client(hello))
                for final in session.replay.finals_after(received):
                    await socket.send_text(final)
        except BaseException:
            self._leave(session)
            raise
        await self._talk(socket, session, upstream)

    async def _reach_again(
        self, scope: Scope, session: _Session, received: int
    ) -> tuple[ClientConnection, dict[str, Any], str]:
        """The session's worker, or a session in the next one."""
        replay = session.replay
        if not session.link.gone.is_set():
            own = {"session_id": replay.worker_session_id, "received": str(replay.worker_utterance(received))}
            query = [(name, value) for name, value in session.query if name not in own] + list(own.items())
            link, upstream, hello, raw = await self._reach(scope, query)
            if link is session.link:
                if hello.get("status") == "connected" and (lost_bytes := replay.resumed(hello)):
                    # The worker finished this audio and says that it never had it. The session goes on without it.
                    logger.error("live audio lost", session=_log_name(replay.id), bytes=lost_bytes)
                return upstream, hello, raw
            await upstream.close(UNCLEAN)  # it died in between, and its successor knows no such session
        return await self._restart(scope, session)

    async def _restart(self, scope: Scope, session: _Session) -> tuple[ClientConnection, dict[str, Any], str]:
        """The session goes on in a fresh one. Raises `WorkerLost` when that happens too often in one place."""
        if session.replay.unproductive_restarts >= _ATTEMPTS:
            raise WorkerLost("The worker process ended again and again over this session.")
        query = [(name, value) for name, value in session.query if name not in ("session_id", "received")]
        session.link, upstream, hello, raw = await self._reach(scope, query)
        if hello.get("status") == "connected" and (prelude := session.replay.restarted(hello)) is not None:
            await upstream.send(prelude)
        return upstream, hello, raw

    async def _reach(
        self, scope: Scope, query: list[tuple[str, str]]
    ) -> tuple[WorkerConnection, ClientConnection, dict[str, Any], str]:
        """A connection to a worker, and its first message."""
        for _ in range(_ATTEMPTS):
            link = await self._worker.running()
            try:
                upstream = await connect(link, scope, urlencode(query))
                raw = str(await upstream.recv())
            except (WorkerGone, ConnectionClosed):
                await self._worker.lost(link)
                continue
            self._worker.served()
            return link, upstream, json.loads(raw), raw
        raise WorkerLost("The worker process ended; connect again.")

    # -- a connection ------------------------------------------------------------------------------------------------

    async def _talk(self, socket: WebSocket, session: _Session, upstream: ClientConnection) -> None:
        reader = asyncio.create_task(_read(socket, session))
        try:
            while True:
                closed = await self._carry(socket, session, upstream, reader)
                if closed is None:
                    return
                if closed.code is not None:
                    await socket.close(sendable(closed.code), closed.reason)
                    return
                await self._worker.lost(session.link)
                upstream, hello, raw = await self._restart(socket.scope, session)
                if hello.get("status") != "connected":
                    await socket.send_text(raw)
                    await _refuse(socket, upstream)
                    return
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await upstream.close(UNCLEAN)  # nothing if it is closed
            self._leave(session)

    async def _carry(
        self, socket: WebSocket, session: _Session, upstream: ClientConnection, reader: asyncio.Task[bool]
    ) -> Closed | None:
        """Until one side ends: how the worker did, or None for the client, whom the worker is told to be gone."""
        sender = asyncio.create_task(_send(session, upstream))
        hearer = asyncio.create_task(_hear(socket, session, upstream))
        taken = asyncio.create_task(session.taken.wait())
        try:
            await asyncio.wait({reader, hearer, taken}, return_when=asyncio.FIRST_COMPLETED)
            if taken.done():
                raise SessionTaken("The session goes on over another connection.")
            if hearer.done():
                return hearer.result()
            await _take_leave(session, upstream, sender, clean=reader.result())
            return None
        finally:
            for task in (sender, hearer, taken):
                task.cancel()
            await asyncio.gather(sender, hearer, taken, return_exceptions=True)

    def _leave(self, session: _Session) -> None:
        """No connection has the session any more. It waits for its client, if it is still there."""
        session.mine.release()
        if session.replay.id not in self._sessions:
            return
        waiting = [other for other in self._sessions.values() if not other.mine.locked()]
        for other in waiting[: max(0, len(waiting) - _SESSIONS_KEPT)]:
            self._drop(other)
        session.timer = asyncio.get_running_loop().call_later(self._keep_s, self._drop, session)

    def _drop(self, session: _Session) -> None:
        if session.timer is not None:
            session.timer.cancel()
        self._sessions.pop(session.replay.id, None)
        session.hold.close()


async def _take_over(session: _Session) -> None:
    """A client that closed and came back at once may still be leaving; one that is half-open has to."""
    while True:
        try:
            async with asyncio.timeout(_LEAVE_GRACE_S):
                await session.mine.acquire()
        except TimeoutError:
            session.taken.set()
        else:
            session.taken.clear()
            return


async def _read(socket: WebSocket, session: _Session) -> bool:
    """What the client sends, into the journal. Returns whether it ended in order."""
    buffer = session.replay.input.buffer
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return closed_cleanly(message)
        if (pcm := message.get("bytes")) is not None:
            session.replay.add_audio(pcm, time.monotonic())
        else:
            await _act(socket, session, message.get("text") or "")
        session.news.set()
        while buffer.held_bytes > _JOURNAL_BYTES:
            session.room.clear()
            await session.room.wait()


async def _act(socket: WebSocket, session: _Session, text: str) -> None:
    """One text frame. What needs no worker is answered here, in the worker's words."""
    try:
        action = parse_action(text)
        if action.action == "ping":
            await socket.send_json({"status": "pong"})
            return
        if action.action == "config" and action.language is not None:
            languages.normalize(action.language)
        session.replay.input.add_action(ActionKind(action.action), text)
    except InvalidInput as error:
        await socket.send_json(live_error_message(error))


async def _send(session: _Session, upstream: ClientConnection) -> None:
    """The journal to the worker. Ends with the connection, which `_hear` reports."""
    while True:
        session.news.clear()
        while (frame := session.replay.input.buffer.next_frame()) is not None:
            try:
                await upstream.send(frame)
            except ConnectionClosed:
                return
        await session.news.wait()


async def _hear(socket: WebSocket, session: _Session, upstream: ClientConnection) -> Closed:
    """The worker's messages to the client. Returns how the worker ended the connection."""
    while True:
        try:
            raw = await upstream.recv()
        except ConnectionClosed as closed:
            return Closed.of(closed)
        told = session.replay.on_message(str(raw), time.monotonic())
        session.room.set()
        session.news.set()
        if told is not None:
            await socket.send_text(told)


async def _take_leave(
    session: _Session, upstream: ClientConnection, sender: asyncio.Task[None], *, clean: bool
) -> None:
    """The client is gone: the worker gets what it sent last, and is told how it went."""
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
    try:
        async with asyncio.timeout(_LAST_FRAMES_S):
            while (frame := session.replay.input.buffer.next_frame()) is not None:
                await upstream.send(frame)
    except (TimeoutError, ConnectionClosed):
        pass  # it is sent when the client comes back
    if clean:
        session.replay.input.add_end()
    await upstream.close(CLEAN if clean else UNCLEAN)


async def _refuse(socket: WebSocket, upstream: ClientConnection) -> None:
    """The worker's first message was an error: the rest of what it says, and its close."""
    closed = await pump(socket, upstream)
    if closed is not None:
        await socket.close(sendable(closed.code), closed.reason)


async def _end(socket: WebSocket, error: AsrError) -> None:
    """Tell the error, then close with its code. A client that does not read is not waited for."""
    try:
        async with asyncio.timeout(_GOODBYE_S):
            if socket.application_state.name != "CONNECTING":
                await socket.send_json(live_error_message(error))
            await end(socket, http_response(error), Closed(TABLE[error.code].ws_close, error.code))
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
        return
