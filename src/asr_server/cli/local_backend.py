"""The backend of `--local`: a worker process of this command, on a Unix socket, used through the same client.

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
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from asr_server.cli.backend import Event
from asr_server.cli.failure import Failure, NoServer, UsageError
from asr_server.cli.remote_backend import RemoteBackend
from asr_server.core.errors import ModelUnavailable, TranslationUnavailable
from asr_server.processes.unix_sockets import unnamed_socket

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server.features.gateway.worker import Process
    from asr_server.recordings.requests import Request

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

    async def process(self, recording: BinaryIO, request: Request) -> AsyncGenerator[Event, None]:
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
