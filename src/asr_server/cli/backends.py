"""The backends of commands: a server over HTTP, or a worker process of `--local`, used through the same client.

The worker never outlives the command. It is in a session of its own, so that Ctrl-C reaches this process alone, which
then kills the worker's process group. Where this process is killed, the worker's standard input ends, and the worker
ends itself (`features/gateway/child.py`).
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from asr_server.cli.backend import AnswerText, BackendResult, Event, JobAccepted, RecordingDuration, RecordingProgress
from asr_server.cli.failure import Failure, NoServer, UsageError, no_server
from asr_server.client import files
from asr_server.client.jobs import AsyncJobClient, JobStatus
from asr_server.core.errors import ModelUnavailable, TranslationUnavailable
from asr_server.features.alignments.requests import AlignmentRequest
from asr_server.processes.unix_sockets import unnamed_socket
from asr_server.recordings.requests import Request, ResponseFormat, Result, TranscriptionRequest, WordTimes

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.features.gateway.worker import Process

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

    async def process(self, recording: BinaryIO, request: Request | AlignmentRequest) -> AsyncGenerator[Event, None]:
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

    async def _process_once(
        self, recording: BinaryIO, request: Request | AlignmentRequest
    ) -> AsyncGenerator[Event, None]:
        if self._as_job and not isinstance(request, AlignmentRequest):
            async with aclosing(self._follow_job(recording, request)) as events:
                async for event in events:
                    yield event
        elif isinstance(request, TranscriptionRequest) and request.stream:
            async with aclosing(self._files.deltas(recording, request)) as deltas:
                async for delta in deltas:
                    yield AnswerText(delta)
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
                    yield RecordingDuration(duration_s)
                yield RecordingProgress(job.done_s)
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


def notes(request: Request | AlignmentRequest, result: Result) -> tuple[str, ...]:
    """Return what the user should know about the quality of subtitles and translations."""
    found = []
    if request.word_times is WordTimes.ALIGNED and result.time_source in _TIME_NOTES:
        found.append(_TIME_NOTES[result.time_source])
    if result.untranslated:
        found.append(f"{result.untranslated} lines could not be translated and stayed in the source language")
    return tuple(found)


def _backend_result(request: Request | AlignmentRequest, result: Result) -> BackendResult:
    return BackendResult(result.content.decode(), notes(request, result), result.duration_s)


def _is_plain_text(request: TranscriptionRequest) -> bool:
    return request.output.response_format is ResponseFormat.TEXT and request.speakers is None


def _event(item: files.Duration | files.Span) -> Event:
    if isinstance(item, files.Duration):
        return RecordingDuration(item.seconds)
    if item.whole:
        return BackendResult(f"{item.text}\n", duration_s=item.end_s)
    return RecordingProgress(item.end_s)


def wait_s(error: files.FileError) -> float:
    """Seconds until the server may accept the request; infinite for errors that waiting does not remove."""
    is_full = error.code == "rate_limit_exceeded" and error.retry_after_s is not None
    return max(1.0, error.retry_after_s or 0.0) if is_full else float("inf")


# The limits that protect a server from its many callers do not apply to one's own work.
_UNLIMITED = 1e9
_MOST_SPEECH_CHARS = 200_000
# Errors that every recording would have: the settings are wrong.
_SETTINGS_ERRORS = {ModelUnavailable.code, TranslationUnavailable.code}
_CONNECT_EVERY_S = 0.02
_STOP_S = 5.0
# A worker that was killed closes its connections a moment before its end is known.
_END_S = 1.0
_LOG_TAIL_BYTES = 2_000


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
        max_queue_speech_s=_UNLIMITED,
        max_speech_chars=_MOST_SPEECH_CHARS,
        # No directory can be made below a device, so this worker has no jobs: those of a server are not for it to run.
        state_dir=os.devnull,
    )


class LocalBackend:
    """Implements `Backend`. The worker starts with the context and loads the model for the first recording.

    Raises `PlanError` for settings that cannot work together, `NoServer` where the worker ends by itself.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        from asr_server import feature_list
        from asr_server.features.gateway.child import spawner

        feature_list.resolve(self._settings)  # an error is known before a process is started
        async with AsyncExitStack() as stack:
            try:
                socket = stack.enter_context(unnamed_socket())
                self._log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
                with socket.listener:
                    process = await spawner(self._settings, output=self._log.fileno())(socket.listener)
            except OSError as error:
                raise NoServer(f"the worker process of --local cannot be started: {error}.") from error
            self._ended = asyncio.create_task(process.wait())
            stack.push_async_exit(functools.partial(self._stop, process))
            await self._wait_until_ready(socket.path)
            # The worker has the keys of the environment and of .env, if there are any.
            key = next(iter(self._settings.keys), "")
            remote = RemoteBackend("http://localhost", key, socket=socket.path)
            self._remote = await stack.enter_async_context(remote)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def process(self, recording: BinaryIO, request: Request | AlignmentRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of one recording."""
        try:
            async with aclosing(self._remote.process(recording, request)) as events:
                async for event in events:
                    yield event
        except Failure as failure:
            if failure.code in _SETTINGS_ERRORS:
                raise UsageError(failure.message) from failure
            if failure.code == "connection_lost":
                await self._check_alive()
            raise
        except NoServer:
            await self._check_alive()
            raise

    async def forget(self, job: str) -> None:
        """Do nothing: there are no jobs here."""

    async def _wait_until_ready(self, socket: Path) -> None:
        while True:
            try:
                _, writer = await asyncio.open_unix_connection(socket)
            except ConnectionRefusedError:
                await self._check_alive(_CONNECT_EVERY_S)
            else:
                writer.close()
                return

    async def _check_alive(self, wait_s: float = _END_S) -> None:
        """Wait a moment for the end of the worker. Raises `NoServer`, with its last output, if it has ended."""
        await asyncio.wait([self._ended], timeout=wait_s)
        if not self._ended.done():
            return
        code = self._ended.result()
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        log = self._log.read().decode(errors="replace").strip()
        raise NoServer(f"the worker process of --local {reason}" + (f"; it wrote:\n{log}" if log else "."))

    async def _stop(
        self,
        process: Process,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the worker end in order after success; after an error or Ctrl-C nothing is waited for."""
        if kind is None and not self._ended.done():
            process.terminate()
            await asyncio.wait([self._ended], timeout=_STOP_S)
        if not self._ended.done():
            # Its decoder's process is in another group, and dies with its parent.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await self._ended
