"""WebSockets through the gateway to the worker, frame by frame and with their close codes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import CloseCode
from websockets.typing import Origin, Subprotocol

from asr_server.core.errors import AsrError, MalformedBody, WorkerLost
from asr_server.features.gateway.worker import Worker, WorkerConnection
from asr_server.net.errors import TABLE, http_response
from asr_server.net.websocket_io import closed_cleanly

# A worker that hangs is killed before, which ends the wait.
_OPEN_S, _CLOSE_S = 60.0, 1.0
_NO_STATUS = 1005
CLEAN, UNCLEAN = 1000, 1011
_PRIVATE_CODES = range(3000, 5000)
_SET_BY_CLIENT = frozenset(
    b"host connection upgrade origin sec-websocket-key sec-websocket-version sec-websocket-extensions"
    b" sec-websocket-protocol".split()
)


class HandshakeRefused(Exception):
    """The worker refused the handshake with an HTTP response, which the client gets."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class WorkerGone(Exception):
    """The worker could not be reached."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The close of a connection. A connection without a close code broke."""

    code: int | None
    reason: str = ""

    @classmethod
    def of(cls, closed: ConnectionClosed) -> Closed:
        """Return the close frame that the worker sent, or no code if it sent none."""
        return cls(closed.rcvd.code, closed.rcvd.reason) if closed.rcvd is not None else cls(None)


async def connect(connection: WorkerConnection, scope: Scope, query: str) -> ClientConnection:
    """Connect to the worker with the client's headers. Raises `HandshakeRefused`, `WorkerGone`, `MalformedBody`."""
    given = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    headers = dict(given)
    path = scope["raw_path"].decode("latin-1")
    try:
        return await unix_connect(
            str(connection.socket),
            f"ws://{headers.get('host', 'worker')}{path}" + (f"?{query}" if query else ""),
            additional_headers=[(name, value) for name, value in given if name.encode() not in _SET_BY_CLIENT],
            origin=Origin(headers["origin"]) if "origin" in headers else None,
            subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
            user_agent_header=None,
            compression=None,
            max_size=None,
            ping_interval=None,  # a worker that is gone closes its socket at once
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
        )
    except InvalidStatus as refused:
        answer = refused.response
        raise HandshakeRefused(
            Response(bytes(answer.body or b""), answer.status_code, dict(answer.headers))
        ) from refused
    except (InvalidURI, ValueError) as error:
        raise MalformedBody("The request's headers cannot be passed on.") from error
    except (OSError, EOFError, InvalidHandshake, TimeoutError) as error:
        raise WorkerGone from error


class Sockets:
    """An ASGI app for the WebSockets that end when their worker does. Live sessions, which do not, are in `live.py`."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        socket = WebSocket(scope, receive, send)
        with self._worker.use():
            try:
                await self._serve(socket)
            except AsrError as error:
                await end(socket, http_response(error), Closed(TABLE[error.code].ws_close, error.code))
            except HandshakeRefused as refused:
                await end(socket, refused.response, Closed(UNCLEAN))
            except (WebSocketDisconnect, OSError):
                return

    async def _serve(self, socket: WebSocket) -> None:
        connection = await self._worker.running()
        try:
            upstream = await connect(connection, socket.scope, socket.scope["query_string"].decode("latin-1"))
        except WorkerGone:
            await self._worker.lost(connection)
            connection = await self._worker.running()
            try:
                upstream = await connect(connection, socket.scope, socket.scope["query_string"].decode("latin-1"))
            except WorkerGone as gone:
                raise WorkerLost("The worker process ended; connect again.") from gone
        await relay(socket, upstream)


async def relay(socket: WebSocket, upstream: ClientConnection) -> None:
    """Accept the client's socket, and pass frames both ways until one side ends, as which the other then ends."""
    async with closing(upstream):
        await socket.accept(upstream.subprotocol)
    closed = await pump(socket, upstream)
    if closed is not None and closed.code is None:
        closed = Closed(TABLE[WorkerLost.code].ws_close, WorkerLost.code)
    if closed is not None:
        await socket.close(sendable(closed.code), closed.reason)


@asynccontextmanager
async def closing(upstream: ClientConnection) -> AsyncIterator[None]:
    """Close the connection to the worker if the block fails, as when the client left while the worker started."""
    try:
        yield
    except BaseException:
        await upstream.close(UNCLEAN)
        raise


async def end(socket: WebSocket, answer: Response, closed: Closed) -> None:
    """Refuse the handshake with `answer`, or close as `closed` says if the handshake is complete."""
    try:
        if socket.application_state.name == "CONNECTING":
            await socket.send_denial_response(answer)
        else:
            await socket.close(sendable(closed.code), closed.reason)
    except (WebSocketDisconnect, OSError, RuntimeError):
        return


async def pump(socket: WebSocket, upstream: ClientConnection) -> Closed | None:
    """Pass frames both ways until one side ends. Returns the worker's close, or None if the client ended it."""
    inward = asyncio.create_task(_inward(socket, upstream))
    outward = asyncio.create_task(_outward(socket, upstream))
    try:
        await asyncio.wait({inward, outward}, return_when=asyncio.FIRST_COMPLETED)
        if outward.done():
            return outward.result()
        inward.result()
        return None
    finally:
        for task in (inward, outward):
            task.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)
        await upstream.close(UNCLEAN)  # nothing if it is closed


async def _inward(socket: WebSocket, upstream: ClientConnection) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            await upstream.close(CLEAN if closed_cleanly(message) else UNCLEAN)
            return
        try:
            data = message.get("bytes")
            await upstream.send(data if data is not None else message.get("text") or "")
        except ConnectionClosed:
            await asyncio.get_running_loop().create_future()  # wait: `_outward` returns how it ended


async def _outward(socket: WebSocket, upstream: ClientConnection) -> Closed:
    while True:
        try:
            frame = await upstream.recv()
        except ConnectionClosed as closed:
            return Closed.of(closed)
        if isinstance(frame, str):
            await socket.send_text(frame)
        else:
            await socket.send_bytes(frame)


def sendable(code: int | None) -> int:
    """Return the close code to send for one that was received: some may not be sent."""
    if code == _NO_STATUS or code is None:
        return CLEAN
    return code if code in set(CloseCode) - {1005, 1006, 1015} or code in _PRIVATE_CODES else UNCLEAN
