"""The engine replica's end of the connections by which apps send it rows."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from loguru import logger

from asr_server.core.errors import AsrError, EngineFailed, Overloaded, ShuttingDown
from asr_server_ray import frames
from asr_server_ray.frames import FrameTooLong, FrameWriter
from asr_server_ray.messages import TOKEN_BYTES, Address, Answer, RowCall

# The time for the token of a new connection.
_TOKEN_S = 5.0
# The time for apps to read the last answers.
_CLOSE_S = 2.0


class RowServer:
    """Takes rows from apps. Used from one event loop.

    `answers`: yields the answers to a row; closing it cancels the row. At most `most_rows` are under way at once.
    """

    def __init__(self, answers: Callable[[RowCall], AsyncGenerator[Answer, None]], most_rows: int) -> None:
        self._answers, self._most_rows = answers, most_rows
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._rows: set[asyncio.Task[None]] = set()
        self._draining = False

    @property
    def address(self) -> Address | None:
        """The address at which it listens; None before it does."""
        if self._server is None:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port, self._token)

    async def listen(self, host: str) -> None:
        """Begin, at a free port of that address."""
        self._server = await asyncio.start_server(self._serve, host, 0, limit=frames.BUFFER_BYTES)

    async def drain(self, timeout_s: float) -> None:
        """Take no more rows, wait for those under way, and end the connections."""
        self._draining = True
        if self._rows:
            await asyncio.wait(self._rows, timeout=timeout_s)
        if self._server is not None:
            self._server.close()
        for writer in self._connections.values():
            writer.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=_CLOSE_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            frames.watch_peer(writer)
            async with asyncio.timeout(_TOKEN_S):
                token = await reader.readexactly(TOKEN_BYTES)
            if hmac.compare_digest(token, self._token):
                await self._take_rows(reader, FrameWriter(writer))
        except (OSError, asyncio.IncompleteReadError, FrameTooLong):
            pass  # the app has gone, or it is none
        finally:
            del self._connections[task]
            writer.close()

    async def _take_rows(self, reader: asyncio.StreamReader, out: FrameWriter) -> None:
        rows: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                message: RowCall | int = await frames.read(reader)
                if isinstance(message, RowCall):
                    self._start(message, out, rows)
                elif message in rows:
                    rows[message].cancel()
        finally:
            for task in rows.values():
                task.cancel()

    def _start(self, call: RowCall, out: FrameWriter, rows: dict[int, asyncio.Task[None]]) -> None:
        rows[call.number] = task = asyncio.create_task(self._answer(call, out))
        self._rows.add(task)
        task.add_done_callback(self._rows.discard)
        task.add_done_callback(lambda _: rows.pop(call.number, None))

    async def _answer(self, call: RowCall, out: FrameWriter) -> None:
        try:
            if self._draining:
                raise ShuttingDown("This engine replica takes no more rows.")
            if len(self._rows) > self._most_rows:
                raise Overloaded("All engine replicas are busy.")
            async with aclosing(self._answers(call)) as answers:
                async for answer in answers:
                    await out.send((call.number, answer))
        except OSError:
            pass  # the connection has ended
        except Exception as error:
            if not isinstance(error, AsrError):
                logger.exception("a row could not be answered")
                error = EngineFailed(f"{type(error).__name__} in the engine replica")
            out.write((call.number, error))
