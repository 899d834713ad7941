"""A server as the hearer of a batch. The protocol is the client's; here is patience, and which route fits a wish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import BinaryIO

from asr_server.cli.failure import Failure, NoServer
from asr_server.cli.hearer import Answer, Event, Length, Reached, Wish, Words
from asr_server.client import files
from asr_server.service.request import ResponseFormat

# A server that is full says when to come again; a batch waits that long in all before it calls a recording failed.
_PATIENCE_S = 600.0


class Remote:
    """Implements `Hearer` over HTTP."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._client = files.AsyncFileClient(server)

    async def __aenter__(self) -> Remote:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def hear(self, recording: BinaryIO, wish: Wish) -> AsyncGenerator[Event, None]:
        """The events of one recording; waits and asks again while the server is full."""
        left_s = _PATIENCE_S
        while True:
            try:
                async with aclosing(self._ask(recording, wish)) as events:
                    async for event in events:
                        yield event
                return
            except files.ServerUnreachable as error:
                raise NoServer(
                    f"no server answers at {self._server}. Start one (asr-server serve --port 8100), name another "
                    "(--server URL), or go without (--local)."
                ) from error
            except files.FileError as error:
                left_s -= _wait_s(error)
                if left_s < 0:
                    raise Failure(error.code, error.message) from error
                await asyncio.sleep(_wait_s(error))

    async def _ask(self, recording: BinaryIO, wish: Wish) -> AsyncGenerator[Event, None]:
        options = files.FileOptions(
            language=wish.language,
            prompt=wish.prompt,
            hotwords=wish.hotwords,
            response_format=wish.response_format.value,
            **({"model": wish.model} if wish.model else {}),
        )
        if wish.stream:
            async with aclosing(self._client.pieces(recording, options)) as pieces:
                async for piece in pieces:
                    yield Words(piece)
            yield Answer("\n")
        elif wish.response_format is ResponseFormat.TEXT:
            async with aclosing(self._client.spans(recording, options)) as items:
                async for item in items:
                    yield _event(item)
        else:
            yield Answer(await self._client.transcribe(recording, options))


def _event(item: files.Length | files.Span) -> Event:
    if isinstance(item, files.Length):
        return Length(item.seconds)
    return Answer(f"{item.text}\n") if item.whole else Reached(item.end_s)


def _wait_s(error: files.FileError) -> float:
    """Seconds until the server would take it; for ever where it says of no time that it would."""
    busy = error.code == "rate_limit_exceeded" and error.retry_after_s is not None
    return max(1.0, error.retry_after_s or 0.0) if busy else float("inf")
