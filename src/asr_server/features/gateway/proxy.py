"""HTTP requests through the gateway to the worker. Bodies and event streams pass as they arrive.

If the worker dies before the first byte of the response, the request is sent once more to the next worker. That is safe
even if the dead one had begun to work on it: a transcription has no side effect, and a voice replaces the one of the
same name. Otherwise the client gets an error.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from asr_server.core.errors import AsrError, Cancelled, MalformedBody, WorkerLost
from asr_server.features.gateway.worker import Worker, WorkerConnection
from asr_server.net.body import SPOOL_BYTES, BodyReader, map_disk_errors, too_large
from asr_server.net.errors import error_body

_ATTEMPTS = 2  # workers that may die over one request
_TRIES = 5  # in all, with workers that were dead before the request reached them
_PIECE_BYTES = 256 * 1024
_WHOLE_BYTES = 4 * 1024 * 1024  # a response up to this size is passed on when it is complete
# An answer takes as long as the worker lets a request take; a worker that hangs is killed, which ends the wait.
_TIMEOUT = {"connect": 5.0, "read": None, "write": None, "pool": None}
# These hold for one connection only (RFC 9110, 7.6.1); uvicorn sees to `date` and to `expect`.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade date expect x-request-id".split()
)
# The edge middleware of this process adds it too.
_ADDED_BY_EDGE = (b"vary", b"Origin")

Headers = list[tuple[bytes, bytes]]


class Upload(httpx.AsyncByteStream):
    """A body that can be iterated again: the part that has arrived comes from a file, the rest as it arrives.

    `empty`: the request has no body. Iterating raises `FileTooLarge` at most one network chunk past the limit,
    `Cancelled` when the client leaves, `UploadStalled` when it is too slow, and `UploadsUnavailable`.
    """

    def __init__(self, receive: Receive, max_bytes: int, *, empty: bool = False) -> None:
        self._receive = receive
        self._body = BodyReader(receive, max_bytes)
        # A write goes to the page cache: faster than handing it to a thread.
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - closed by `close`
        self._complete = asyncio.Event()
        if empty:
            self._complete.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body from its beginning."""
        at = 0
        while at < self._body.size:
            self._file.seek(at)
            piece = self._file.read(min(_PIECE_BYTES, self._body.size - at))
            at += len(piece)
            yield piece
        while not self._complete.is_set():
            if piece := await self._next():
                yield piece

    async def _next(self) -> bytes:
        message = await self._body()
        if message["type"] == "http.disconnect":
            raise Cancelled("The client closed the connection.")
        piece: bytes = message.get("body", b"")
        with map_disk_errors():
            self._file.seek(0, 2)
            self._file.write(piece)
            self._file.flush()
        if not message.get("more_body", False):
            self._complete.set()
        return piece

    async def gone(self) -> None:
        """Return when the client leaves after its whole body was read."""
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def close(self) -> None:
        """Delete the body."""
        self._file.close()


class Proxy:
    """An ASGI app that responds as the worker does. Raises `AsrError` before the first byte of a response."""

    def __init__(self, worker: Worker, max_upload_bytes: int) -> None:
        self._worker = worker
        self._max_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.isdigit() and int(length) > self._max_bytes:
            raise too_large(self._max_bytes)
        upload = Upload(receive, self._max_bytes, empty=not _has_body(scope))
        with self._worker.use():
            exchange = asyncio.create_task(self._exchange(scope, upload, send))
            gone = asyncio.create_task(upload.gone())
            try:
                await asyncio.wait({exchange, gone}, return_when=asyncio.FIRST_COMPLETED)
                if exchange.done():
                    exchange.result()
                else:
                    scope["state"]["outcome"] = Cancelled.code
                    if not scope["state"].get("logged_elsewhere"):  # nothing is answered yet
                        raise Cancelled("The client closed the connection.")
            finally:
                for task in (exchange, gone):
                    task.cancel()
                await asyncio.gather(exchange, gone, return_exceptions=True)
                upload.close()

    async def _exchange(self, scope: Scope, upload: Upload, send: Send) -> None:
        died = 0
        for _ in range(_TRIES):
            connection = await self._worker.running()
            try:
                answer = await self._request(connection, scope, upload)
            except httpx.LocalProtocolError as error:
                raise MalformedBody("The request's headers cannot be passed on.") from error
            except httpx.TransportError as error:
                died += not isinstance(error, httpx.ConnectError)
                if died == _ATTEMPTS:
                    break
                await self._worker.lost(connection)
                continue
            scope["state"]["logged_elsewhere"] = True
            try:
                await _pass_on(answer, scope, send)
            except httpx.TransportError:
                # The worker has cut its answer off and logged why, or it is lost. Returning cuts off this one.
                await self._worker.lost(connection)
                if connection.gone.is_set():
                    scope["state"] |= {"outcome": WorkerLost.code, "logged_elsewhere": False}
            finally:
                await answer.aclose()
            return
        raise WorkerLost("The worker process ended while it worked on this request; try again.")

    async def _request(self, connection: WorkerConnection, scope: Scope, upload: Upload) -> httpx.Response:
        """Return the worker's response: complete if it is short, else with its body still to come."""
        request = httpx.Request(
            scope["method"],
            "http://worker",
            headers=_headers_of(scope),
            stream=upload,
            extensions={"target": _target(scope), "timeout": _TIMEOUT},
        )
        answer = await connection.http.handle_async_request(request)
        answer.request = request
        length = answer.headers.get("content-length", "")
        if length.isdigit() and int(length) <= _WHOLE_BYTES:
            try:
                raw = b"".join([piece async for piece in _pieces(answer)])
            finally:
                await answer.aclose()
            answer.stream = httpx.ByteStream(raw)
        self._worker.served()
        return answer


async def _pass_on(answer: httpx.Response, scope: Scope, send: Send) -> None:
    given = [(name.lower(), value) for name, value in answer.headers.raw]
    headers = [header for header in given if header[0] not in _HOP_BY_HOP and header != _ADDED_BY_EDGE]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    if isinstance(answer.stream, httpx.ByteStream):  # complete
        await send({"type": "http.response.body", "body": b"".join(answer.stream), "more_body": False})
        return
    events = answer.headers.get("content-type", "").startswith("text/event-stream")
    unfinished = b""  # an incomplete event is held back: a client would read it as a broken one
    try:
        async for piece in _pieces(answer):
            whole, unfinished = _events(unfinished + piece) if events else (piece, b"")
            if whole:
                await send({"type": "http.response.body", "body": whole, "more_body": True})
    except httpx.TransportError:
        if not events:
            raise
        scope["state"] |= {"outcome": WorkerLost.code, "logged_elsewhere": False}
        unfinished = _event(WorkerLost("The worker process ended while it worked on this request; try again."))
    await send({"type": "http.response.body", "body": unfinished, "more_body": False})


def _pieces(answer: httpx.Response) -> Any:
    return answer.stream  # as it is on the wire: not decompressed


def _events(data: bytes) -> tuple[bytes, bytes]:
    """Return the complete events, and the beginning of the next."""
    end = data.rfind(b"\n\n") + 2
    return (data[:end], data[end:]) if end > 1 else (b"", data)


def _event(error: AsrError) -> bytes:
    body = error_body(error)
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def _target(scope: Scope) -> bytes:
    query: bytes = scope["query_string"]
    path: bytes = scope["raw_path"]
    return path + b"?" + query if query else path


def _has_body(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return bool(names & {b"content-length", b"transfer-encoding"})


def _headers_of(scope: Scope) -> Headers:
    """Return the request's headers for the worker, with the id that this process has given the request."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]
    names = {name for name, _ in scope["headers"]}
    if b"host" not in names:
        headers.append((b"host", b"localhost"))
    if b"transfer-encoding" in names and b"content-length" not in names:
        headers.append((b"transfer-encoding", b"chunked"))
    return [*headers, (b"x-request-id", scope["state"]["id"].encode())]
