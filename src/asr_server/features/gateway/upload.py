"""A request's body on its way to the worker: within the byte limit, and kept so that it can be sent once more."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator

import httpx
from starlette.types import Receive

from asr_server.core.errors import Cancelled
from asr_server.net.body import BodyReader, map_disk_errors

_IN_MEMORY_BYTES = 1024 * 1024
_PIECE_BYTES = 256 * 1024


class Upload(httpx.AsyncByteStream):
    """A body that can be iterated again: the part that has arrived comes from a file, the rest as it arrives.

    `empty`: the request has no body. Iterating raises `FileTooLarge` at most one network chunk past the limit,
    `Cancelled` when the client leaves, `UploadStalled` when it is too slow, and `UploadsUnavailable`.
    """

    def __init__(self, receive: Receive, max_bytes: int, *, empty: bool = False) -> None:
        self._receive = receive
        self._body = BodyReader(receive, max_bytes)
        # A write goes to the page cache: faster than handing it to a thread.
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
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
