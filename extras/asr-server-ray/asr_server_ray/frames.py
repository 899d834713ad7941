"""Messages on a TCP connection between an app and an engine replica: a length of four bytes, then a pickled object.

Who can send these can run code here, so a replica unpickles nothing before it was sent its token.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

_LENGTH_BYTES = 4
# A row of two minutes of audio has 8 MB.
_MOST_BYTES = 32 * 1024 * 1024
# The most bytes that are read ahead.
BUFFER_BYTES = 1024 * 1024
# A machine that is gone is noticed within about this time, a process that ends at once.
_SILENCE_S, _PROBE_S, _PROBES = 5, 2, 3
_UNSENT_MS = 10_000


class FrameTooLong(Exception):
    """A message is longer than any that is sent."""


async def read(reader: asyncio.StreamReader) -> Any:
    """Return the next message. Raises `FrameTooLong`, `OSError`, and `IncompleteReadError` if the connection ended."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES))
    if length > _MOST_BYTES:
        raise FrameTooLong(f"{length} bytes")
    return pickle.loads(await reader.readexactly(length))


class FrameWriter:
    """Writes messages. Several tasks may send at once."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer, self._lock = writer, asyncio.Lock()

    def write(self, message: object) -> None:
        """Queue a message. Raises `FrameTooLong`."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        if len(body) > _MOST_BYTES:
            raise FrameTooLong(f"{len(body)} bytes")
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES) + body)

    async def send(self, message: object) -> None:
        """Queue a message, and wait while the other end is behind. Raises `FrameTooLong` and `OSError`."""
        self.write(message)
        async with self._lock:
            await self._writer.drain()


def watch_peer(writer: asyncio.StreamWriter) -> None:
    """Have the system end the connection when the other machine does not answer any more."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _SILENCE_S),
        (socket.TCP_KEEPINTVL, _PROBE_S),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, _UNSENT_MS),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
