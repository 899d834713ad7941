"""`WS /v1/realtime`: OpenAI's realtime events. `conversation.py` makes the server's events."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from fastapi import APIRouter, Request, WebSocket
from pydantic import BaseModel, Field
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from asr_server.audio import g711
from asr_server.core.errors import AsrError, InvalidInput, ShuttingDown
from asr_server.features.realtime import events
from asr_server.features.realtime.config import Config, ServerDefaults
from asr_server.features.realtime.conversation import Conversation, session_body
from asr_server.live.machine.events import Audio, Configure, Flush, Reset
from asr_server.live.machine.framing import WholeSamples
from asr_server.live.session import LiveConnection, LiveSessionOptions
from asr_server.net import body, websocket_io
from asr_server.net.access import MAX_LIFETIME_S, selected_subprotocol
from asr_server.net.errors import ErrorBody
from asr_server.processes.caller_work import in_thread
from asr_server.server_feature import ServerFeature
from asr_server.services import CallerDep, Services, ServicesDep

router = APIRouter(tags=["realtime"])

SESSION_S = 3600.0  # OpenAI's sessions end after an hour
_MIN_COMMIT_MS = 100
_GOODBYE_S = 1.0
_LARGE_FRAME = 256 * 1024  # parsing more than this takes milliseconds: not on the event loop


router.add_api_route("/v1/realtime", websocket_io.refuse_plain_request, include_in_schema=False)


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """Transcription over OpenAI's Realtime protocol."""
    services, caller, model = socket.app.state.services, socket.state.caller, socket.query_params.get("model")
    defaults = ServerDefaults.of(services)
    try:
        config = defaults.initial(model) if caller.session is None else defaults.checked(caller.session)
    except InvalidInput as error:
        websocket_io.count_error(socket, error)
        await websocket_io.reject_websocket(socket, error)
        return
    await socket.accept(subprotocol=selected_subprotocol(socket))
    connection = _RealtimeConnection(socket, services, defaults, config)
    await websocket_io.serve(socket, connection.run(), connection.conversation.error)


class _RealtimeConnection:
    """The state that the reader and the writer of one connection share."""

    def __init__(self, socket: WebSocket, services: Services, defaults: ServerDefaults, config: Config) -> None:
        self._socket = socket
        self._services = services
        self._defaults = defaults
        self._config = config
        expires_at = int(time.time() + SESSION_S)
        self.conversation = Conversation(self._config, f"sess_{secrets.token_hex(12)}", expires_at)
        self._uncommitted_ms = 0.0
        self._whole_samples = WholeSamples()

    async def run(self) -> None:
        """Serve until the client leaves. Raises the `AsrError` that ended the session, if one did."""
        rules, owner = self._defaults.rules_of(self._config), self._socket.state.caller.owner
        options = LiveSessionOptions(rules, self._config.input.format.rate_hz, owner=owner)
        connection = await self._services.live.open(options)
        clean: bool | None = False
        try:
            async with asyncio.timeout(SESSION_S):
                await self._socket.send_json(self.conversation.created())
                clean = await websocket_io.read_and_write(self._read(connection), self._write(connection))
        except TimeoutError:
            raise InvalidInput(
                "The session has reached its longest duration; open a new one.", code="session_expired"
            ) from None
        except AsrError as error:
            # Sent before leaving the session: at shutdown the server waits for the client to read it, then disconnects.
            if isinstance(error, ShuttingDown):
                await self._give_up_items(error)
            await websocket_io.end(self._socket, error, self.conversation.error)
        finally:
            self._services.live.disconnect(connection, clean=bool(clean), resumable=False)

    async def _give_up_items(self, error: AsrError) -> None:
        """Notify the client of committed items that get no transcript because they were not finished in time."""
        with suppress(TimeoutError, WebSocketDisconnect, OSError, RuntimeError):  # the client is gone, or does not read
            async with asyncio.timeout(_GOODBYE_S):
                for event in self.conversation.unfinished(error):
                    await self._socket.send_json(event)

    async def _write(self, connection: LiveConnection) -> None:
        async for outgoing in connection.messages():
            for event in self.conversation.on_message(outgoing.message):
                await self._socket.send_json(event)

    async def _read(self, connection: LiveConnection) -> bool:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return websocket_io.closed_cleanly(message)
            await self._take(connection, message)

    async def _take(self, connection: LiveConnection, message: Message) -> None:
        """Process one frame. An invalid frame is answered with an error, and the session continues."""
        event_id = None
        try:
            frame = message.get("text") or message.get("bytes") or ""
            large = len(frame) > _LARGE_FRAME
            values = await in_thread(events.load, frame) if large else events.load(frame)
            event_id = events.event_id(values)
            kind, value = await in_thread(events.parse, values) if large else events.parse(values)
            await self._act(connection, kind, value)
        except AsrError as error:
            await self._socket.send_json(self.conversation.error(error, event_id))

    async def _act(self, connection: LiveConnection, kind: str, value: Any) -> None:
        match kind:
            case "input_audio_buffer.append":
                await self._append(connection, value)
            case "input_audio_buffer.commit":
                if self._uncommitted_ms < _MIN_COMMIT_MS:
                    raise InvalidInput(
                        f"Nothing to commit: at least {_MIN_COMMIT_MS} ms of audio is needed, "
                        f"the buffer has {int(self._uncommitted_ms)} ms.",
                        code="input_audio_buffer_commit_empty",
                    )
                self._start_buffer()
                await connection.send(Flush())
            case "input_audio_buffer.clear":
                self._start_buffer()
                await connection.send(Reset())
            case "session.update":
                await self._update(connection, value)
            case "conversation.item.retrieve":
                await self._socket.send_json(self.conversation.retrieved(value))
            case "conversation.item.delete":
                await self._socket.send_json(self.conversation.deleted(value))

    async def _append(self, connection: LiveConnection, audio: bytes) -> None:
        wire_format = self._config.input.format
        self._uncommitted_ms += len(audio) / wire_format.bytes_per_ms
        pcm = self._whole_samples.push(audio) if wire_format.law is None else g711.decode(audio, wire_format.law)
        await connection.send(Audio(pcm))

    def _start_buffer(self) -> None:
        """Empty the buffer. The next byte begins a sample: a kept odd byte would turn the rest into noise."""
        self._uncommitted_ms = 0.0
        self._whole_samples.clear()

    async def _update(self, connection: LiveConnection, session: Mapping[str, Any]) -> None:
        config = self._defaults.updated(self._config, session)
        rules = self._defaults.rules_of(config)
        self._services.live.prepare(rules)
        changed = config.input.format != self._config.input.format
        if changed:
            self._whole_samples.clear()
        self._config = config
        answer = self.conversation.updated(config)
        await connection.send(Configure(rules, config.input.format.rate_hz if changed else None))
        await self._socket.send_json(answer)


_MAX_BODY_BYTES = 1024 * 1024


class Expiry(BaseModel):
    """A key is good for `seconds` from `anchor` on."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(default=600, ge=10, le=MAX_LIFETIME_S, description="Seconds from now.")


class SecretRequest(BaseModel):
    """The body of `client_secrets`."""

    expires_after: Expiry = Expiry()
    session: dict[str, Any] | None = Field(None, description="As in `session.update`; see docs/use/realtime.md.")


class SecretBody(BaseModel):
    """A key, and the session that it opens."""

    value: str
    expires_at: int = Field(description="Unix seconds.")
    session: dict[str, Any]


_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorBody} for status in (400, 404, 413)}


_TAKES = body.json_of(SecretRequest, required=False)


@router.post("/v1/realtime/client_secrets", responses=_ERRORS, openapi_extra=_TAKES)
async def create_client_secret(request: Request, services: ServicesDep, caller: CallerDep) -> SecretBody:
    """Make an ephemeral key for `WS /v1/realtime`, to be given to a browser."""
    wanted = body.validated(SecretRequest, await body.read_json(request, _MAX_BODY_BYTES))
    defaults = ServerDefaults.of(services)
    config = defaults.initial()
    if wanted.session is not None:
        config = defaults.updated(config, wanted.session)
    key = services.ephemeral_keys.issue(config.model_dump(), wanted.expires_after.seconds, caller.owner)
    shown = session_body(config, f"sess_{secrets.token_hex(12)}", key.expires_at)
    return SecretBody(value=key.value, expires_at=key.expires_at, session=shown)


SERVER = ServerFeature(routers=[router])
