"""A server as the hearer of a batch. The protocol is the client's; here is patience, and which route fits a wish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, BinaryIO

from asr_server.cli.backend import (
    MODES,
    BackendResult,
    Duration,
    Event,
    JobAccepted,
    Layout,
    Progress,
    RequestOptions,
    WordMode,
    remarks,
)
from asr_server.cli.failure import Failure, no_server
from asr_server.client import files
from asr_server.client.exchange import Response
from asr_server.client.jobs import AsyncJobClient, JobStatus
from asr_server.client.options import FileOptions, Options, SubtitleOptions, TranslationOptions
from asr_server.service.requests import ResponseFormat

# A server that is full says when to come again; a batch waits that long in all before it calls a recording failed.
_PATIENCE_S = 600.0
# A job outlives its server: so long a restart may take until nobody waits for the job any more.
_RESTART_S = 60.0
_RESTARTING = {"connection_lost", "shutting_down"}
_RETRY_S = 1.0


class RemoteBackend:
    """Implements `Hearer` over HTTP."""

    def __init__(self, server: str, key: str = "") -> None:
        self._server = server
        self._client = files.AsyncFileClient(server, key=key)
        self._jobs = AsyncJobClient(server, key=key)

    async def __aenter__(self) -> RemoteBackend:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
        await self._jobs.close()

    async def hear(self, recording: BinaryIO, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        """The events of one recording; waits and asks again while the server is full."""
        left_s = _PATIENCE_S
        while True:
            try:
                async with aclosing(self._ask(recording, wish)) as events:
                    async for event in events:
                        yield event
                return
            except files.ServerUnreachable as error:
                raise no_server(self._server, ", or go without (--local)") from error
            except files.FileError as error:
                left_s -= _wait_s(error)
                if left_s < 0:
                    raise Failure(error.code, error.message) from error
                await asyncio.sleep(_wait_s(error))

    async def forget(self, job: str) -> None:
        """Remove it from the server; one that cannot be reached now forgets it by itself in time."""
        with suppress(files.FileError):
            await self._jobs.delete(job)

    async def _ask(self, recording: BinaryIO, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        asked = options(wish)
        if wish.as_job:
            async with aclosing(self._job(recording, asked, wish)) as events:
                async for event in events:
                    yield event
        elif wish.stream and isinstance(asked, FileOptions):
            async with aclosing(self._client.pieces(recording, asked)) as pieces:
                async for piece in pieces:
                    yield WordMode(piece)
            yield BackendResult("\n")
        elif isinstance(asked, FileOptions) and wish.response_format is ResponseFormat.TEXT:
            async with aclosing(self._client.spans(recording, asked)) as items:
                async for item in items:
                    yield _event(item)
        else:
            yield _answer(wish, await self._client.make(recording, asked))

    async def _job(self, recording: BinaryIO, asked: Options, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        job = await self._jobs.submit(recording, asked)
        yield JobAccepted(job.id)
        async with aclosing(followed(self._jobs, job.id)) as changes:
            async for job in changes:
                if job.duration_s:
                    yield Duration(job.duration_s)
                yield Progress(job.done_s)
        if job.error is not None:
            await self.forget(job.id)
            raise Failure(job.error.code, job.error.message)
        yield _answer(wish, await self._jobs.result(job.id))


async def followed(jobs: AsyncJobClient, identity: str) -> AsyncGenerator[JobStatus, None]:
    """How a job stands, until it is over, also past a restart of its server. Raises `Failure` when that takes long."""
    heard_s = time.monotonic()
    while True:
        try:
            async with aclosing(jobs.watch(identity)) as changes:
                async for status in changes:
                    heard_s = time.monotonic()
                    yield status
            return
        except files.FileError as error:
            lost = isinstance(error, files.ServerUnreachable) or error.code in _RESTARTING
            if not lost or time.monotonic() - heard_s > _RESTART_S:
                advice = f" Ask again: asr-server job {identity} --wait" if lost else ""
                raise Failure(error.code, f"{error.message}{advice}") from error
            await asyncio.sleep(_RETRY_S)


def options(wish: RequestOptions) -> Options:
    """The wish as a client says it."""
    common: dict[str, Any] = {"language": wish.language, "prompt": wish.prompt, "hotwords": wish.hotwords}
    common |= {"model": wish.model} if wish.model else {}
    layout = wish.layout or Layout()
    cues: dict[str, Any] = {
        "mode": next(name for name, times in MODES.items() if times is layout.times),
        "max_line_chars": layout.max_line_columns,
        "max_lines": layout.max_lines,
    }
    response_format = wish.response_format.value
    if wish.target:
        target = wish.target
        common |= {"to": target.tag, "bilingual": target.bilingual, "glossary": target.glossary}
        return TranslationOptions(**common, **cues, response_format=response_format)
    if wish.layout:
        return SubtitleOptions(**common, **cues, format=response_format)
    return FileOptions(**common, response_format=response_format)


def _answer(wish: RequestOptions, found: Response) -> BackendResult:
    return BackendResult(found.content, remarks(wish, found.timing, found.untranslated))


def _event(item: files.Duration | files.Span) -> Event:
    if isinstance(item, files.Duration):
        return Duration(item.seconds)
    return BackendResult(f"{item.text}\n") if item.whole else Progress(item.end_s)


def _wait_s(error: files.FileError) -> float:
    """Seconds until the server would take it; for ever where it says of no time that it would."""
    busy = error.code == "rate_limit_exceeded" and error.retry_after_s is not None
    return max(1.0, error.retry_after_s or 0.0) if busy else float("inf")
