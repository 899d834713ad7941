"""What both live sockets do alike: read and write at once, and end. Knows no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

_CLOSE_TIMEOUT_S = 5.0  # for a close frame to a client that does not read


T = TypeVar("T")


async def read_and_write(read: Coroutine[Any, Any, T], write: Coroutine[Any, Any, None]) -> T | None:
    """Read and write until either ends or fails. What the reader returned; None if the writer ended first."""
    reader, writer = asyncio.create_task(read), asyncio.create_task(write)
    try:
        done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
        if reader in done:
            return reader.result()
        writer.result()
        return None
    finally:
        for task in (reader, writer):
            task.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)


async def close_with_error(socket: WebSocket, code: int, reason: str, message: dict[str, Any] | None = None) -> None:
    """Send a last message, then close. A client that does not read is not waited for."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            if message is not None:
                await socket.send_json(message)
            await socket.close(code, reason)
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
        return
