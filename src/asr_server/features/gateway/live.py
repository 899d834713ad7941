"""`WS /ws/transcribe` through the gateway: one session for the client over any number of workers.

When a worker dies, the session goes on in a new session of the next worker, which is sent everything that is not
finished. `live_relay.py` carries the frames of a connection; `live_replay.py` decides what is sent again, and what the
client gets.
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
from asr_server.engine.catalog import Catalog
from asr_server.features.gateway.live_relay import RelayedSession, read_client, relay
from asr_server.features.gateway.live_replay import LiveReplay
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
from asr_server.features.handover.continuation import Continuation
from asr_server.features.handover.continuation_wire import ContinueRequest, read_frame
from asr_server.features.stereo import two_channels
from asr_server.live.actions import OF_GATEWAY, parse_query
from asr_server.live.options import began_before_moving_s
from asr_server.net.errors import TABLE, http_response, live_error_message
from asr_server.net.shared_bytes import SharedBytes
from asr_server.net.websocket_io import DISCARD
from asr_server.text import languages

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
    """An ASGI app that serves live sessions.

    `catalog`: the models that the worker has. `keep_s`: how long a session waits for its client. `max_utterance_s`:
    the length at which an utterance is cut.
    """

    def __init__(self, worker: Worker, catalog: Catalog, keep_s: float, max_utterance_s: float) -> None:
        self._worker = worker
        self._catalog = catalog
        self._keep_s = keep_s
        self._max_utterance_s = max_utterance_s
        self._sessions: dict[str, RelayedSession] = {}
        self._opening: set[str] = set()  # ids of sessions that are about to be among them
        self._memory = SharedBytes()
        self._evictions: set[asyncio.Task[None]] = set()  # asyncio itself holds a task only weakly
        self._released = asyncio.Event()  # a connection has left its session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        client = WebSocket(scope, receive, send)
        with self._worker.use():
            try:
                if two_channels.asked_for(client):
                    await two_channels.serve(client, self)
                else:
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
        moved = None
        if parameters.handover and parameters.session_id:
            await client.accept()
            moved = await read_frame(client, parameters.session_id, parameters.received)
            self._check_language(moved.state, parameters.model)
            if self._worker.refusing:
                raise ShuttingDown("The server is shutting down.")
        session = self._sessions.get(parameters.session_id)
        is_owner = session is not None and session.owner == client.state.caller.owner
        if session is not None and is_owner and (moved is None or session.replay.issued(moved.state)):
            await self._resume(client, session, query, parameters.received)
            return
        if session is not None and is_owner:
            self._evict(session)  # its client has gone on with another server since
        elif session is not None and moved is not None:
            raise SessionNotFound("No session of this id is kept; open a new one.", param="session_id")
        await self._open(client, query, moved, parameters.received)

    def _check_language(self, state: Continuation, model: str) -> None:
        """Raise `InvalidInput` for a state whose language the model does not know.

        The worker would refuse only the action that the gateway sends for it, and the client would not see that.
        """
        if state.configured is not None:
            resident = self._catalog.find(model).resident if model else ""
            self._catalog.check_language(languages.normalize(state.configured.language), model=resident)

    async def hand_over(self, within_s: float) -> None:
        """Ask the clients that can move to go on with another server; wait for them until the time is over."""
        asked = [session for session in self._sessions.values() if session.client and session.replay.can_move]
        if not within_s:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.gather(*(_ask_to_move(session, within_s) for session in asked))
                while any(session.client is not None for session in asked):
                    self._released.clear()
                    await self._released.wait()

    # -- the beginning of a connection -------------------------------------------------------------------------------

    async def _open(
        self, client: WebSocket, query: Query, moved: ContinueRequest | None = None, received: int = 0
    ) -> None:
        """Open a session, which is new or continues a session of another server."""
        began_s, own = time.monotonic(), {}
        if moved is not None:
            began_s = began_before_moving_s(self._max_utterance_s)
            own = {"first_speaker": str(moved.state.first_speaker), "began_s": str(began_s)}
            query = _without(query, "session_id", "received")
        opened = await self._reach_worker(client.scope, [*query, *own.items()])
        async with closing(opened.socket):
            await _accept(client)
            if opened.refused:
                await _pass_on_refusal(client, opened)
                return
            replay = LiveReplay(opened.hello, moved, received)
            # If two connections continue a session at the same moment, only one gets it: each waits for its client
            # and the worker.
            if replay.id in self._sessions or replay.id in self._opening:
                raise SessionTaken("The session goes on over another connection.")
            self._opening.add(replay.id)
            try:
                await client.send_text(replay.hello_for_new_client(opened.hello))
                if replay.first_frame is not None:
                    await opened.socket.send(replay.first_frame)
            finally:
                self._opening.remove(replay.id)
        lease = ExitStack()
        lease.enter_context(self._worker.use())
        share, owner = self._memory.share(), client.state.caller.owner
        session = RelayedSession(replay, opened.worker, share, client.scope, query, lease, began_s, owner)
        self._sessions[replay.id] = session
        lease.enter_context(client.state.place.kept(replay.id, lambda: self._evict(session)))
        await session.connection_lock.acquire()
        await _send_notice(client, session)
        await self._talk(client, session, opened.socket)

    async def _resume(self, client: WebSocket, session: RelayedSession, query: Query, received: int) -> None:
        await session.take_over()
        session.scope = client.scope
        session.query = [pair for pair in session.query if pair[0] != _KEY]
        session.query += [pair for pair in query if pair[0] == _KEY]
        try:
            if session.expiry is not None:
                session.expiry.cancel()
            resumed = await self._resume_in_worker(client.scope, session, received)
            async with closing(resumed.socket):
                await _accept(client)
                if resumed.refused:
                    self._drop(session)
                    await _pass_on_refusal(client, resumed)
                    self._release(session)
                    return
                await client.send_text(session.replay.hello_for_client(resumed.hello))
                for final in session.replay.finals_after(received):
                    await client.send_text(final)
                if session.replay.can_move:
                    newest = {"status": "continuation", "continuation": session.replay.current_continuation()}
                    await client.send_json(newest)
                await _send_notice(client, session)
        except BaseException:
            self._release(session)
            raise
        await self._talk(client, session, resumed.socket)

    async def _resume_in_worker(self, scope: Scope, session: RelayedSession, received: int) -> _WorkerSession:
        """Resume the session in its worker if that is alive, else open one in the next worker."""
        replay = session.replay
        if not session.worker.gone.is_set():
            reached = await self._reach_worker(scope, _resuming(session, received))
            if reached.worker is session.worker:
                if not reached.refused and (lost_bytes := replay.resumed(reached.hello)):
                    # The worker has finished this audio and says that it never had it: a fault. Nobody has it any more.
                    logger.error("live audio lost", session=replay.log_name, bytes=lost_bytes)
                return reached
            await reached.socket.close(UNCLEAN)  # the worker died in between; its successor knows no such session
        return await self._restart_in_worker(scope, session)

    async def _restart_in_worker(self, scope: Scope, session: RelayedSession) -> _WorkerSession:
        """Continue the session in a fresh worker. Raises `WorkerLost` when that happens too often in one place."""
        if session.replay.unproductive_restarts >= _ATTEMPTS:
            raise WorkerLost("The worker process ended again and again over this session.")
        own = session.replay.worker_query(session.began_s)
        query = _without(session.query, "session_id", "received")
        opened = await self._reach_worker(scope, [*query, *own.items()])
        session.worker = opened.worker
        if not opened.refused and (config := session.replay.restarted(opened.hello)) is not None:
            with suppress(ConnectionClosed):  # whoever reads from the connection sees the same
                await opened.socket.send(config)
        return opened

    async def _reach_worker(self, scope: Scope, query: Query) -> _WorkerSession:
        for _ in range(_ATTEMPTS):
            worker = await self._worker.running()
            try:
                upstream = await connect(worker, scope, urlencode(query))
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
                restarted = await self._restart_in_worker(client.scope, session)
                upstream = restarted.socket
                if restarted.refused:
                    await _pass_on_refusal(client, restarted)
                    return
                await _send_notice(client, session)
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
        if session.replay.id not in self._sessions:
            return
        session.expiry = asyncio.get_running_loop().call_later(self._keep_s, self._drop, session)

    def _drop(self, session: RelayedSession) -> None:
        if session.expiry is not None:
            session.expiry.cancel()
        self._sessions.pop(session.replay.id, None)
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
            upstream = await connect(session.worker, session.scope, urlencode(_resuming(session, 0)))
            async with closing(upstream):
                await upstream.recv()
            await upstream.close(DISCARD)


def _resuming(session: RelayedSession, received: int) -> Query:
    """Return the query that resumes the session in its worker."""
    replay = session.replay
    own = {"session_id": replay.worker_session_id, "received": str(replay.worker_utterance(received))}
    query = _without(session.query, "handover", *own)  # `handover`: it would wait for a state
    return [*query, *own.items()]


def _without(query: Query, *names: str) -> Query:
    return [(name, value) for name, value in query if name not in names]


async def _ask_to_move(session: RelayedSession, within_s: float) -> None:
    request = {"status": "reconnect", "continuation": session.replay.current_continuation(), "within_s": within_s}
    with suppress(WebSocketDisconnect, OSError, RuntimeError):  # it is gone
        if session.client is not None:
            await session.client.send_json(request)


async def _accept(client: WebSocket) -> None:
    """Accept the connection, if its first frame did not have to be read before."""
    if client.application_state.name == "CONNECTING":
        await client.accept()


async def _send_notice(client: WebSocket, session: RelayedSession) -> None:
    """Tell the client that another worker has taken over, where it makes a difference."""
    if (notice := session.replay.take_notice()) is not None:
        await client.send_text(notice)


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
