"""The backend over HTTP: chooses the route for a request, waits while the server is full, follows jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from asr_server.cli.backend import BackendResult, Duration, Event, JobAccepted, Progress, TextDelta
from asr_server.cli.failure import Failure, no_server
from asr_server.client import files
from asr_server.client.jobs import AsyncJobClient, JobStatus
from asr_server.recordings.requests import Request, ResponseFormat, Result, TranscriptionRequest, WordTimes

# A full server says when to try again. A recording fails after waiting for this long in total.
MAX_WAIT_S = 600.0
# Jobs survive a restart of the server. A restart may take this long.
_MAX_RESTART_S = 60.0
_RESTARTING = {"connection_lost", "shutting_down"}
_RETRY_S = 1.0
_TIME_NOTES = {
    "estimated": "its times are estimated: no aligner helped",
    "mixed": "some of its times are estimated: the aligner did not help with all words",
}


class RemoteBackend:
    """Implements `Backend`. `as_job`: every recording is submitted as a job. `socket`: see `AsyncConnection`."""

    def __init__(self, server: str, key: str = "", *, socket: Path | None = None, as_job: bool = False) -> None:
        self._server = server
        self._as_job = as_job
        self._files = files.AsyncFileClient(server, key=key, socket=socket)
        self._jobs = AsyncJobClient(server, key=key, socket=socket)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._files.close()
        await self._jobs.close()

    async def process(self, recording: BinaryIO, request: Request) -> AsyncGenerator[Event, None]:
        """Yield the events of one recording. Waits and tries again while the server is full."""
        left_s = MAX_WAIT_S
        while True:
            try:
                async with aclosing(self._process_once(recording, request)) as events:
                    async for event in events:
                        yield event
                return
            except files.ServerUnreachable as error:
                raise no_server(self._server, ", or run without one (--local)") from error
            except files.FileError as error:
                left_s -= wait_s(error)
                if left_s < 0:
                    raise Failure(error.code, error.message) from error
                await asyncio.sleep(wait_s(error))

    async def forget(self, job: str) -> None:
        """Remove the job. A server that cannot be reached removes it itself when its time is over."""
        with suppress(files.FileError):
            await self._jobs.delete(job)

    async def _process_once(self, recording: BinaryIO, request: Request) -> AsyncGenerator[Event, None]:
        if self._as_job:
            async with aclosing(self._follow_job(recording, request)) as events:
                async for event in events:
                    yield event
        elif isinstance(request, TranscriptionRequest) and request.stream:
            async with aclosing(self._files.deltas(recording, request)) as deltas:
                async for delta in deltas:
                    yield TextDelta(delta)
            yield BackendResult("\n")
        elif isinstance(request, TranscriptionRequest) and _is_plain_text(request):
            # This route reports progress; the one for whole answers does not.
            async with aclosing(self._files.spans(recording, request)) as items:
                async for item in items:
                    yield _event(item)
        else:
            yield _backend_result(request, await self._files.process(recording, request))

    async def _follow_job(self, recording: BinaryIO, request: Request) -> AsyncGenerator[Event, None]:
        job = await self._jobs.submit(recording, request)
        yield JobAccepted(job.id)
        duration_s = None
        async with aclosing(watch_job(self._jobs, job.id)) as changes:
            async for job in changes:
                if job.duration_s:
                    duration_s = job.duration_s
                    yield Duration(duration_s)
                yield Progress(job.done_s)
        if job.error is not None:
            await self.forget(job.id)
            raise Failure(job.error.code, job.error.message)
        yield replace(_backend_result(request, await self._jobs.result(job.id)), duration_s=duration_s)


async def watch_job(jobs: AsyncJobClient, identity: str) -> AsyncGenerator[JobStatus, None]:
    """The changes of a job until it is over, also across a restart of the server. Raises `Failure`."""
    last_change_s = time.monotonic()
    while True:
        try:
            async with aclosing(jobs.watch(identity)) as changes:
                async for status in changes:
                    last_change_s = time.monotonic()
                    yield status
            return
        except files.FileError as error:
            lost = isinstance(error, files.ServerUnreachable) or error.code in _RESTARTING
            if not lost or time.monotonic() - last_change_s > _MAX_RESTART_S:
                raise Failure(error.code, error.message, job_goes_on=lost) from error
            await asyncio.sleep(_RETRY_S)


def notes(request: Request, result: Result) -> tuple[str, ...]:
    """Return what the user should know about the quality of subtitles and translations."""
    found = []
    if request.word_times is WordTimes.ALIGNED and result.time_source in _TIME_NOTES:
        found.append(_TIME_NOTES[result.time_source])
    if result.untranslated:
        found.append(f"{result.untranslated} lines could not be translated and stayed in the source language")
    return tuple(found)


def _backend_result(request: Request, result: Result) -> BackendResult:
    return BackendResult(result.content.decode(), notes(request, result), result.duration_s)


def _is_plain_text(request: TranscriptionRequest) -> bool:
    """True if the answer is the text of all spans. With speakers it is a line for each turn, made at the end."""
    return request.output.response_format is ResponseFormat.TEXT and request.speakers is None


def _event(item: files.Duration | files.Span) -> Event:
    if isinstance(item, files.Duration):
        return Duration(item.seconds)
    if item.whole:
        return BackendResult(f"{item.text}\n", duration_s=item.end_s)
    return Progress(item.end_s)


def wait_s(error: files.FileError) -> float:
    """Seconds until the server may accept the request; infinite for errors that waiting does not remove."""
    is_full = error.code == "rate_limit_exceeded" and error.retry_after_s is not None
    return max(1.0, error.retry_after_s or 0.0) if is_full else float("inf")
