"""`WS /ws/transcribe` through the gateway: one session for the client over any number of workers.

When a worker dies, the gateway goes on with the session in the next worker, as a client does that moves to another
server. `live_relay.py` carries the frames of a connection; `carried_session.py` has what the next worker needs.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from loguru import logger
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from asr_server.core.errors import AsrError, InvalidInput, SessionNotFound, SessionTaken, ShuttingDown, WorkerLost
from asr_server.features.gateway.carried_session import CarriedSession
from asr_server.features.gateway.live_relay import RelayedSession, read_client, relay
from asr_server.features.gateway.sockets import (
    UNCLEAN,
    Closed,
    HandshakeRefused,
    WorkerGone,
    closing,
    connect,
    end,
    pump,
    sendable,
)
from asr_server.features.gateway.worker import Worker, WorkerConnection
from asr_server.features.handover.continuation import Continuation, first_text, parse_frame
from asr_server.live.actions import OF_GATEWAY, parse_query
from asr_server.live.arrivals import began_before_moving_s
from asr_server.net.errors import TABLE, http_response, live_error_message
from asr_server.net.shared_bytes import SharedBytes
from asr_server.net.websocket_io import DISCARD

_ATTEMPTS = 3  # workers that may die while one session does not advance
_GOODBYE_S = 5.0
_KEY = "token"  # in the query

Query = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class _WorkerSession:
    """A connection to a session in a worker, opened or refused, and the first message of the worker."""

    worker: WorkerConnection
    socket: ClientConnection
    first_message: str

    @property
    def hello(self) -> dict[str, Any]:
        """The first message's fields."""
        fields: dict[str, Any] = json.loads(self.first_message)
        return fields

    @property
    def refused(self) -> bool:
        """True if the first message is an error, after which the worker closes the connection."""
        return self.hello.get("status") != "connected"


class LiveSockets:
    """An ASGI app that serves live sessions. `keep_s`: how long a session waits for its client."""

    def __init__(self, worker: Worker, keep_s: float) -> None:
        self._worker = worker
        self._keep_s = keep_s
        self._sessions: dict[str, RelayedSession] = {}
        self._opening: set[str] = set()  # ids of sessions of other servers that are about to be among them
        self._memory = SharedBytes()
        self._evictions: set[asyncio.Task[None]] = set()  # asyncio itself holds a task only weakly
        self._released = asyncio.Event()  # a connection has left its session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        client = WebSocket(scope, receive, send)
        with self._worker.use():
            try:
                await self._serve(client)
            except AsrError as error:
                await _end_with_error(client, error)
            except HandshakeRefused as refused:
                await end(client, refused.response, Closed(UNCLEAN))
            except (WebSocketDisconnect, OSError):
                return

    async def _serve(self, client: WebSocket) -> None:
        given = parse_qsl(client.scope["query_string"].decode("latin-1"))
        query = [(name, value) for name, value in given if name not in OF_GATEWAY]
        try:
            parameters = parse_query(dict(query))
        except InvalidInput:
            await self._open(client, query)  # the worker says what is wrong
            return
        frame, state, received = "", None, parameters.received
        if parameters.handover and parameters.session_id:
            await client.accept()
            frame = await first_text(client)
            state = parse_frame(frame, parameters.session_id, received).state
            if self._worker.refusing:
                raise ShuttingDown("The server is shutting down.")
        session = self._sessions.get(parameters.session_id)
        is_owner = session is not None and session.owner == client.state.caller.owner
        if session is not None and is_owner and (state is None or session.carried.issued(state)):
            await self._resume(client, session, query, received)
            return
        if session is not None and is_owner:
            self._evict(session)  # its client has gone on with another server since
        elif parameters.session_id and (session is not None or state is None):
            await _accept(client)
            raise SessionNotFound("No session of this id is kept; open a new one.", param="session_id")
        query = [*_without(query, "handover"), ("handover", "true")]
        if state is None:
            await self._open(client, query, can_move=parameters.handover)
        else:
            await self._go_on(client, query, state, frame, received)

    async def hand_over(self, within_s: float) -> None:
        """Ask the clients that can move to go on with another server; wait for them until the time is over."""
        asked = [session for session in self._sessions.values() if session.client and session.carried.can_move]
        if not within_s:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(_ask_to_move(session, within_s) for session in asked))
                while any(session.client is not None for session in asked):
                    self._released.clear()
                    await self._released.wait()

    # -- the beginning of a connection -------------------------------------------------------------------------------

    async def _open(self, client: WebSocket, query: Query, *, can_move: bool = False) -> None:
        """Open a new session."""
        opened = await self._reach_worker(client.scope, query)
        session = await self._begun(client, opened, query, can_move=can_move)
        if session is not None:
            await self._talk(client, session, opened.socket)

    async def _go_on(self, client: WebSocket, query: Query, state: Continuation, frame: str, received: int) -> None:
        """Go on with a session of another server, from the first frame of its client."""
        # If two connections continue a session at the same moment, only one gets it: each waits for the worker.
        if state.session_id in self._opening:
            raise SessionTaken("The session goes on over another connection.")
        self._opening.add(state.session_id)
        try:
            if self._evictions:
                await asyncio.wait(self._evictions)  # perhaps of the session with this id
            opened = await self._reach_worker(client.scope, query, frame)
            if not opened.refused and "continued" not in opened.hello:
                # The worker still has a session that is over here, where its input is not kept any more.
                await opened.socket.close(DISCARD)
                opened = await self._reach_worker(client.scope, query, frame)
            session = await self._begun(client, opened, query, received, can_move=True)
        finally:
            self._opening.remove(state.session_id)
        if session is not None:
            await self._talk(client, session, opened.socket)

    async def _begun(
        self, client: WebSocket, opened: _WorkerSession, query: Query, received: int = 0, *, can_move: bool
    ) -> RelayedSession | None:
        """Return the session that the worker has opened, which this connection has, or None if it has refused."""
        async with closing(opened.socket):
            await _accept(client)
            if opened.refused:
                await _pass_on_refusal(client, opened)
                return None
            hello, began_s = opened.hello, time.monotonic()
            if "continued" in hello:
                began_s = began_before_moving_s(float(hello["window_max_s"]))
            carried = CarriedSession(hello, received, can_move=can_move)
            await client.send_text(carried.hello_for_new_client(hello))
        lease = ExitStack()
        lease.enter_context(self._worker.use())
        query = _without(query, "session_id", "received", "handover")
        share, owner = self._memory.share(), client.state.caller.owner
        session = RelayedSession(carried, opened.worker, share, client.scope, query, lease, began_s, owner)
        self._sessions[carried.id] = session
        lease.enter_context(client.state.place.kept(carried.id, lambda: self._evict(session)))
        await session.connection_lock.acquire()
        return session

    async def _resume(self, client: WebSocket, session: RelayedSession, query: Query, received: int) -> None:
        await session.take_over()
        session.scope = client.scope
        session.query = [pair for pair in session.query if pair[0] != _KEY]
        session.query += [pair for pair in query if pair[0] == _KEY]
        try:
            if session.expiry is not None:
                session.expiry.cancel()
            resumed = await self._go_on_in_worker(client.scope, session)
            async with closing(resumed.socket):
                await _accept(client)
                if resumed.refused:
                    self._drop(session)
                    await _pass_on_refusal(client, resumed)
                    self._release(session)
                    return
                carried = session.carried
                await client.send_text(carried.hello_for_client(resumed.hello))
                for final in carried.finals_after(received):
                    await client.send_text(final)
                if carried.can_move:
                    newest = {"status": "continuation", "continuation": carried.current_continuation()}
                    await client.send_json(newest)
        except BaseException:
            self._release(session)
            raise
        await self._talk(client, session, resumed.socket)

    async def _go_on_in_worker(self, scope: Scope, session: RelayedSession) -> _WorkerSession:
        """Resume the session in its worker, or go on with it in the next one if that is gone.

        Raises `WorkerLost` when that happens too often in one place.
        """
        carried = session.carried
        if session.worker.gone.is_set() and carried.unproductive_restarts >= _ATTEMPTS:
            raise WorkerLost("The worker process ended again and again over this session.")
        query = [*session.query, *carried.worker_query(session.began_s).items()]
        reached = await self._reach_worker(scope, query, carried.first_frame)
        session.worker = reached.worker
        if not reached.refused and (lost_bytes := carried.went_on(reached.hello)):
            # The worker has finished this audio and says that it never had it: a fault. Nobody has it any more.
            logger.error("live audio lost", session=carried.log_name, bytes=lost_bytes)
        return reached

    async def _reach_worker(self, scope: Scope, query: Query, first_frame: str = "") -> _WorkerSession:
        for _ in range(_ATTEMPTS):
            worker = await self._worker.running()
            try:
                upstream = await connect(worker, scope, urlencode(query))
                if first_frame:
                    with suppress(ConnectionClosed):  # it may have refused already
                        await upstream.send(first_frame)
                first_message = str(await upstream.recv())
            except (WorkerGone, ConnectionClosed):
                await self._worker.lost(worker)
                continue
            self._worker.served()
            return _WorkerSession(worker, upstream, first_message)
        raise WorkerLost("The worker process ended; connect again.")

    # -- a connection ------------------------------------------------------------------------------------------------

    async def _talk(self, client: WebSocket, session: RelayedSession, upstream: ClientConnection) -> None:
        """Relay until the client leaves, over as many workers as that takes. The caller holds the session's lock."""
        session.client = client
        reader = asyncio.create_task(read_client(client, session))
        try:
            while True:
                closed = await relay(client, session, upstream, reader)
                if closed is None:
                    if reader.result().moved:
                        self._drop(session)
                    return
                if closed.code is not None:
                    await client.close(sendable(closed.code), closed.reason)
                    return
                # Without a close code the worker died; the reader goes on filling the buffer meanwhile.
                await self._worker.lost(session.worker)
                restarted = await self._go_on_in_worker(client.scope, session)
                upstream = restarted.socket
                if restarted.refused:
                    await _pass_on_refusal(client, restarted)
                    return
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await upstream.close(UNCLEAN)  # nothing if it is closed
            self._release(session)

    def _release(self, session: RelayedSession) -> None:
        """Let go of the session for the connection that had it. If it was not dropped, it waits for its client."""
        session.client = None
        self._released.set()
        session.connection_lock.release()
        if self._sessions.get(session.carried.id) is not session:
            return
        session.expiry = asyncio.get_running_loop().call_later(self._keep_s, self._drop, session)

    def _drop(self, session: RelayedSession) -> None:
        if session.expiry is not None:
            session.expiry.cancel()
        if self._sessions.get(session.carried.id) is session:  # its client may have gone on with another one here
            del self._sessions[session.carried.id]
        session.share.set(0)
        session.lease.close()

    def _evict(self, session: RelayedSession) -> None:
        """End a session whose place is needed: here now, and soon in its worker."""
        self._drop(session)
        task = asyncio.create_task(self._discard_in_worker(session))
        self._evictions.add(task)
        task.add_done_callback(self._evictions.discard)

    async def _discard_in_worker(self, session: RelayedSession) -> None:
        with suppress(HandshakeRefused, WorkerGone, AsrError, ConnectionClosed):  # then it is gone, or goes by its time
            # Without `handover`: a worker that does not have it must not go on with it.
            query = [*session.query, ("session_id", session.carried.id)]
            upstream = await connect(session.worker, session.scope, urlencode(query))
            async with closing(upstream):
                await upstream.recv()
            await upstream.close(DISCARD)


def _without(query: Query, *names: str) -> Query:
    return [(name, value) for name, value in query if name not in names]


async def _ask_to_move(session: RelayedSession, within_s: float) -> None:
    request = {"status": "reconnect", "continuation": session.carried.current_continuation(), "within_s": within_s}
    with suppress(WebSocketDisconnect, OSError, RuntimeError):  # it is gone
        if session.client is not None:
            await session.client.send_json(request)


async def _accept(client: WebSocket) -> None:
    """Accept the connection, if its first frame did not have to be read before."""
    if client.application_state.name == "CONNECTING":
        await client.accept()


async def _pass_on_refusal(client: WebSocket, refusal: _WorkerSession) -> None:
    """Pass on the worker's error message, its later messages, and its close."""
    await client.send_text(refusal.first_message)
    closed = await pump(client, refusal.socket)
    if closed is not None:
        await client.close(sendable(closed.code), closed.reason)


async def _end_with_error(client: WebSocket, error: AsrError) -> None:
    """Send the error, then close with its code. A client that does not read is not waited for."""
    traceback.clear_frames(error.__traceback__)  # as `websocket_io.end` does
    try:
        async with asyncio.timeout(_GOODBYE_S):
            if isinstance(error, SessionTaken) and client.application_state.name == "CONNECTING":
                await client.accept()  # as the server without a gateway does: the close code says what happened
            if client.application_state.name != "CONNECTING":
                await client.send_json(live_error_message(error))
            await end(client, http_response(error), Closed(TABLE[error.code].ws_close, error.code))
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
        return
