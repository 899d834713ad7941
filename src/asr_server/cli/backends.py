"""The backends of commands: a server over HTTP, or a worker process of `--local`, used through the same client.

The worker never outlives the command. It runs in its own session, so that Ctrl-C reaches only this process, which then
kills the worker's process group. If this process is killed, the worker's standard input ends, and the worker exits
(`processes/supervisor.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, TypeVar

from asr_server.cli import arguments
from asr_server.cli.failure import Failure, NoServer, UsageError, server_errors
from asr_server.cli.progress import Event
from asr_server.client.files import AsyncFileClient, Duration, FileError, ServerUnreachable
from asr_server.client.jobs import AsyncJobClient
from asr_server.client.speech import AsyncSpeechClient
from asr_server.core.errors import ModelUnavailable, TranslationUnavailable
from asr_server.features.alignments.requests import AlignmentRequest
from asr_server.processes.unix_sockets import unnamed_socket
from asr_server.recordings.requests import Request, ResponseFormat, Result, TranscriptionRequest

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

# A full server says when to try again. A request fails after waiting for this long in total.
_MAX_WAIT_S = 600.0
# Jobs survive a restart of the server. A restart may take this long.
_MAX_RESTART_S = 60.0
_RESTARTING = {"connection_lost", "shutting_down"}
_RETRY_S = 1.0

Show = Callable[[Event], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    address: str
    key: str = ""
    socket: Path | None = None  # see `AsyncConnection`
    watched: Callable[[], AbstractAsyncContextManager[None]] = nullcontext  # explains errors of the requests inside it


class Backend(AsyncFileClient, AsyncJobClient, AsyncSpeechClient):
    """All requests of commands to a server, over one connection pool. It may process many recordings at once."""

    def __init__(self, server: Server, *, as_job: bool) -> None:
        super().__init__(server.address, key=server.key, socket=server.socket)
        self._server = server
        self._as_job = as_job  # every recording is submitted as a job

    async def answer_to(
        self, recording: BinaryIO, request: Request | AlignmentRequest, show: Show = lambda _: None
    ) -> Result:
        """Return the answer for a recording, which is a file on disk. Raises `Failure`, `NoServer` and `UsageError`."""
        async with self.asking():
            return await while_full(lambda: self._answer_to(recording, request, show))

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Raise the errors of the requests in the block as `answer_to` does."""
        with server_errors(self._server.address, ", or run without one (--local)"):
            async with self._server.watched():
                yield

    async def forget(self, job: str) -> None:
        """Remove a job. Errors are ignored, since the server removes the job itself when it expires."""
        with suppress(FileError):
            await self.delete(job)

    async def _answer_to(self, recording: BinaryIO, request: Request | AlignmentRequest, show: Show) -> Result:
        if self._as_job and not isinstance(request, AlignmentRequest):
            return await self._follow_job(recording, request, show)
        if not isinstance(request, TranscriptionRequest):
            return await self.process(recording, request)
        if request.stream:
            async with aclosing(self.deltas(recording, request)) as deltas:
                async for delta in deltas:
                    show(Event(text=delta))
            return Result(b"\n", "text/plain")
        if request.speakers or request.response_format is not ResponseFormat.TEXT:
            return await self.process(recording, request)
        # This route reports progress; the one for whole answers does not.
        text, end_s = "", 0.0
        async with aclosing(self.spans(recording, request)) as items:
            async for item in items:
                if isinstance(item, Duration):
                    show(Event(duration_s=item.seconds))
                else:
                    text, end_s = item.text, item.end_s
                    show(Event(done_s=end_s))
        return Result(f"{text}\n".encode(), "text/plain", duration_s=end_s)

    async def _follow_job(self, recording: BinaryIO, request: Request, show: Show) -> Result:
        """Submit a job and follow it, even across a restart of the server."""
        job = await self.submit(recording, request)
        show(Event(job=job.id))
        last_change_s = time.monotonic()
        while not job.is_over:
            try:
                async with aclosing(self.watch(job.id)) as changes:
                    async for job in changes:
                        last_change_s = time.monotonic()
                        show(Event(done_s=job.done_s, duration_s=job.duration_s))
            except FileError as error:
                lost = isinstance(error, ServerUnreachable) or error.code in _RESTARTING
                if not lost or time.monotonic() - last_change_s > _MAX_RESTART_S:
                    raise Failure(error.code, error.message, job_goes_on=lost) from error
                await asyncio.sleep(_RETRY_S)
        if job.error is not None:
            await self.forget(job.id)
            raise Failure(job.error.code, job.error.message)
        return replace(await self.result(job.id), duration_s=job.duration_s)


async def while_full(send: Callable[[], Awaitable[T]]) -> T:
    """Return what `send` returns, called again while the server is full. Raises `FileError`."""
    left_s = _MAX_WAIT_S
    while True:
        try:
            return await send()
        except FileError as error:
            if error.code != "rate_limit_exceeded" or error.retry_after_s is None:
                raise
            wait_s = max(1.0, error.retry_after_s)
            left_s -= wait_s
            if left_s < 0:
                raise
            await asyncio.sleep(wait_s)


# A local worker does not need the limits that protect a server from its many callers.
_UNLIMITED = 1e9
_MOST_SPEECH_CHARS = 200_000
# Errors that every request would get, because the settings are wrong.
_SETTINGS_ERRORS = {ModelUnavailable.code, "speech_unavailable", TranslationUnavailable.code}
_GONE = {"connection_lost", "server_unreachable"}
_STOP_S = 5.0
# A worker that was killed closes its connections a moment before its end is known.
_END_S = 1.0
_LOG_TAIL_BYTES = 2_000
_WORKER_ADDRESS = "http://localhost"


def local_settings(model_id: str | None) -> Settings:
    """Return the environment's settings without the limits for callers. Raises `SettingsError`."""
    from asr_server.core import settings
    from asr_server.core.setting_types import LogLevel

    return settings.load(
        **({"model_id": model_id} if model_id else {}),
        host="127.0.0.1",
        log_level=LogLevel.ERROR,
        log_json=False,
        preload=False,
        idle_timeout=0,
        request_timeout=_UNLIMITED,
        max_queue_audio_s=_UNLIMITED,
        max_upload_mb=_UNLIMITED,
        max_speech_chars=_MOST_SPEECH_CHARS,
        key_max_requests=0,
        key_rate=0,
        drain_delay_s=0,
        # No directory can be made below a device, so this worker has no jobs: it must not run the jobs of a server.
        state_dir=os.devnull,
    )


@asynccontextmanager
async def _watched(ended: asyncio.Task[int], log: IO[bytes]) -> AsyncIterator[None]:
    """Raise `UsageError` if the settings caused a request's error, and `NoServer` if the worker has ended."""
    try:
        yield
    except FileError as error:
        if error.code in _SETTINGS_ERRORS:
            raise UsageError(error.message) from error
        if error.code in _GONE:
            await asyncio.wait([ended], timeout=_END_S)
            if ended.done():
                raise NoServer(_end_of(ended.result(), log)) from error
        raise


def _end_of(code: int, log: IO[bytes]) -> str:
    """Return how a worker has ended, with its last output."""
    reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _LOG_TAIL_BYTES))
    text = log.read().decode(errors="replace").strip()
    return f"the worker process of --local {reason}" + (f"; it wrote:\n{text}" if text else ".")


@asynccontextmanager
async def worker(settings: Settings) -> AsyncIterator[Server]:
    """Start a worker, which loads the model for the first request, and end it.

    Raises `PlanError` for settings that cannot work together, `NoServer` if the worker ends by itself.
    """
    from asr_server import feature_list
    from asr_server.processes.supervisor import starter

    feature_list.resolve(settings)  # so that an error is raised before a process is started
    with ExitStack() as stack:
        try:
            socket = stack.enter_context(unnamed_socket())
            log = stack.enter_context(tempfile.TemporaryFile())
            with socket.listener:
                socket.listener.listen()  # requests wait here until the worker accepts them
                process = await starter(("asr_server", "serve"), settings, output=log.fileno())(socket.listener)
        except OSError as error:
            raise NoServer(f"the worker process of --local cannot be started: {error}.") from error
        ended = asyncio.create_task(process.wait())
        try:
            # The worker has the keys of the environment and of .env, if there are any.
            yield Server(_WORKER_ADDRESS, next(iter(settings.keys), ""), socket.path, partial(_watched, ended, log))
            if not ended.done():
                process.terminate()
                await asyncio.wait([ended], timeout=_STOP_S)
        finally:  # after an error or Ctrl-C the worker gets no time to stop
            if not ended.done():
                # The worker's decoder process is in another group, and dies with its parent.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await ended


@asynccontextmanager
async def server_of(parsed: argparse.Namespace) -> AsyncIterator[Server]:
    """Yield the server that the arguments name, or a worker with `--local`."""
    if parsed.local:
        async with worker(local_settings(getattr(parsed, "model", None))) as started:
            yield started
    else:
        yield Server(arguments.server(parsed), arguments.key(parsed))


@asynccontextmanager
async def backend(server: AbstractAsyncContextManager[Server], *, as_job: bool = False) -> AsyncIterator[Backend]:
    async with server as running, Backend(running, as_job=as_job) as opened:
        yield opened


def backend_of(parsed: argparse.Namespace) -> AbstractAsyncContextManager[Backend]:
    """Return the backend that the arguments name. Raises `UsageError`."""
    if parsed.local and parsed.job:
        raise UsageError("--job is for a server; leave out --local.")
    return backend(server_of(parsed), as_job=parsed.job)
