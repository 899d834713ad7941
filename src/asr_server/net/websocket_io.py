"""Functions for all WebSocket routes: parse JSON, read and write concurrently, refuse, send an error, close."""

from __future__ import annotations

import asyncio
import json
import secrets
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import WebSocket
from loguru import logger
from starlette.requests import HTTPConnection
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from asr_server.core.errors import TABLE, AsrError, InvalidInput, ShuttingDown
from asr_server.net.access import by_subprotocol, selected_subprotocol
from asr_server.net.errors import Json, http_response, realtime_error

# Far more than a valid message has: one long text, or a list of up to 1,000 words. Counted before parsing, so brackets
# and commas in a text of up to 16,000 characters count too.
_MAX_CONTAINERS = 2_000
_MAX_VALUES = 20_000
_MAX_DIGITS = 20  # of an integer, whose parsing takes quadratic time


def parse_json(message: str | bytes) -> Any:
    """Parse a client's message in bounded time, since no other client is served meanwhile.

    Raises `ValueError` if it is not JSON in UTF-8 or has too many values, and `RecursionError` if it is nested too
    deeply.
    """
    text = message if isinstance(message, str) else message.decode()
    if text.count("[") + text.count("{") > _MAX_CONTAINERS or text.count(",") > _MAX_VALUES:
        raise ValueError("too many values")
    return json.loads(text, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("the number is too long")
    return int(digits)


_CLOSE_TIMEOUT_S = 5.0  # for a close frame to a client that does not read
_CLEAN_CLOSES = {1000, 1001}
_NO_STATUS = 1005

T = TypeVar("T")
RenderError = Callable[[AsrError], Json]


async def serve(socket: WebSocket, work: Coroutine[Any, Any, None], render: RenderError) -> None:
    """Run `work`, which serves one connection. If an error ends it, send the rendered error and close the socket."""
    try:
        await work
    except AsrError as error:
        await end(socket, error, render)
    except (WebSocketDisconnect, OSError):
        return
    except Exception as error:
        logger.opt(exception=error).error("websocket failed", path=socket.url.path)
        await end(socket, AsrError("The server failed on this session; the log has the details."), render)


async def refuse_plain_request() -> None:
    """Refuse a plain request to a socket's path: from an address bar, or through a proxy without upgrades."""
    raise InvalidInput(
        "This is a WebSocket: connect with ws:// or wss://, through proxies that pass upgrades on.",
        code="upgrade_required",
    )


async def end(socket: WebSocket, error: AsrError, render: RenderError, at_shutdown: Json | None = None) -> None:
    """Count the error, send it, and close with its code. On shutdown, send `at_shutdown` instead."""
    count_error(socket, error)
    # The stack frames hold the message at fault, perhaps a large one, in a cycle with the tasks that raised the error.
    traceback.clear_frames(error.__traceback__)
    message = at_shutdown if isinstance(error, ShuttingDown) else render(error)
    await close(socket, TABLE[error.code].ws_close, error.code, message)


async def reject_websocket(socket: WebSocket, error: AsrError) -> None:
    """Refuse the handshake with an HTTP status.

    A browser cannot see that status. So if it sent a key, accept the socket, send the error as a realtime event, and
    close it. A page of a foreign origin gets only the status: its socket never opens.
    """
    if error.code in ("origin_not_allowed", "host_not_allowed") or by_subprotocol(socket) is None:
        await socket.send_denial_response(http_response(error))
        return
    await socket.accept(subprotocol=selected_subprotocol(socket))
    event = {"type": "error", "event_id": f"event_{secrets.token_hex(6)}", "error": realtime_error(error)}
    mapping = TABLE[error.code]
    await close(socket, mapping.ws_close, f"{mapping.type}.{error.code}", event)


def count_error(socket: HTTPConnection, error: AsrError) -> None:
    """Count a live connection that this error refused or ended."""
    if (services := getattr(socket.app.state, "services", None)) is not None:
        services.request_metrics.error(error.code, "socket")


async def close(socket: WebSocket, code: int, reason: str, message: Json | None = None) -> None:
    """Send a last message, then close. Do not wait for a client that does not read."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            if message is not None:
                await socket.send_json(message)
            await socket.close(code, reason)
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):  # RuntimeError if it is already closed
        return


async def read_and_write(read: Coroutine[Any, Any, T], write: Coroutine[Any, Any, None]) -> T | None:
    """Read and write until either ends or fails. Returns the reader's result, or None if the writer ended first."""
    # Two tasks, so that the messages of a client that does not read are still read.
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
        # Awaited, so that neither uses the socket while the caller closes it. The other task's error adds nothing.
        await asyncio.gather(reader, writer, return_exceptions=True)


def closed_cleanly(message: Message) -> bool:
    """Return True if the client sent a close frame. uvicorn reports a lost connection as 1005 without a reason."""
    code = message.get("code")
    return code in _CLEAN_CLOSES or (code == _NO_STATUS and message.get("reason") is not None)
