"""`WS /v1/realtime`: OpenAI's events both ways. What they mean is not here: see `conversation.py` and `config.py`."""

from __future__ import annotations

import asyncio
import secrets
import time

from fastapi import APIRouter, WebSocket
from loguru import logger
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from asr_server.api import errors as error_table
from asr_server.api import websocket_io
from asr_server.api.dependencies import Services
from asr_server.api.disconnect import ended_in_order
from asr_server.api.edge.access import Caller
from asr_server.api.metrics.metrics import count_error
from asr_server.api.realtime import events, handshake, shapes
from asr_server.api.realtime.config import Config
from asr_server.api.realtime.conversation import Conversation
from asr_server.api.realtime.handshake import Handshake
from asr_server.api.realtime.server_defaults import server_defaults
from asr_server.api.realtime.shapes import Identity
from asr_server.audio import g711
from asr_server.core.errors import AsrError, InvalidInput, NothingToCommit, SessionExpired, ShuttingDown
from asr_server.live.events import Audio, Configure, Flush, Reset
from asr_server.service.live_session.session import Connection
from asr_server.service.live_session.sessions import LiveSessionOptions

router = APIRouter(tags=["realtime"])

_LEAST_COMMIT_MS = 100
_LARGE_FRAME = 256 * 1024  # parsing more than this takes milliseconds: not on the event loop


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """Transcription over OpenAI's Realtime protocol."""
    services: Services = socket.app.state.services
    caller: Caller = socket.state.caller
    hands = handshake.read(socket)
    await socket.accept(subprotocol=hands.subprotocol)
    talk = _RealtimeConnection(socket, services, hands, caller)
    try:
        await talk.run()
    except AsrError as error:
        await talk.end(error)
    except (WebSocketDisconnect, OSError):
        return
    except Exception as error:  # the edge: a fault of ours is logged once and told without its details
        logger.opt(exception=error).error("realtime socket failed")
        await talk.end(AsrError("The server failed on this session; the log has the details."))


class _RealtimeConnection:
    """One connection: what its reader and its writer share."""

    def __init__(self, socket: WebSocket, services: Services, hands: Handshake, caller: Caller) -> None:
        self._socket = socket
        self._services = services
        self._house = server_defaults(services)
        self._owner = caller.owner
        self._config = caller.session_key.config if caller.session_key else self._house.initial(hands.model)
        self._lasts_s = services.settings.realtime_session_s
        identity = Identity(f"sess_{secrets.token_hex(12)}", int(time.time() + self._lasts_s))
        self._conversation = Conversation(self._config, identity, beta=hands.beta)
        self._fresh_ms = 0.0  # audio since the last commit
        self._half = b""  # the first byte of a sample whose second one is still to come

    async def run(self) -> None:
        """Until the client leaves. Raises the `AsrError` that ended it otherwise."""
        options = LiveSessionOptions(
            self._house.rules_of(self._config), self._config.input.format.rate_hz, owner=self._owner
        )
        connection = await self._services.live.open(options)
        clean: bool | None = False
        try:
            async with asyncio.timeout(self._lasts_s):
                await self._socket.send_json(self._conversation.created())
                clean = await websocket_io.read_and_write(self._read(connection), self._write(connection))
        except TimeoutError:
            raise SessionExpired("The session has reached its longest duration; open a new one.") from None
        except AsrError as error:
            await self.end(error)  # before leaving: at shutdown the server waits for that, and then cuts
        finally:
            self._services.live.leave(connection, clean=bool(clean), resumable=False)

    async def end(self, error: AsrError) -> None:
        """Tell the error, then close with its code."""
        message = None if isinstance(error, ShuttingDown) else self._conversation.error(error)
        count_error(self._socket, error)
        await websocket_io.close_with_error(self._socket, error_table.TABLE[error.code].ws_close, error.code, message)

    async def _write(self, connection: Connection) -> None:
        async for outgoing in connection.messages():
            for event in self._conversation.hear(outgoing.message):
                await self._socket.send_json(event)

    async def _read(self, connection: Connection) -> bool:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return ended_in_order(message)
            await self._take(connection, message)

    async def _take(self, connection: Connection, message: Message) -> None:
        """One frame. What is wrong with it is told, and the session goes on."""
        event_id = None
        try:
            frame = message.get("text") or message.get("bytes") or ""
            large = len(frame) > _LARGE_FRAME
            values = await asyncio.to_thread(events.load, frame) if large else events.load(frame)
            event_id = events.event_id(values)
            event = await asyncio.to_thread(events.parse, values) if large else events.parse(values)
            await self._act(connection, event)
        except AsrError as error:
            await self._socket.send_json(self._conversation.error(error, event_id))

    async def _act(self, connection: Connection, event: events.ClientEvent) -> None:
        match event:
            case events.Append(audio=audio):
                await self._append(connection, audio)
            case events.Commit():
                self._check_commit()
                self._begin_anew()
                await connection.tell(Flush())
            case events.Clear():
                self._begin_anew()
                await connection.tell(Reset())
            case events.Update():
                await self._update(connection, event)
            case events.Retrieve(item_id=item_id):
                await self._socket.send_json(self._conversation.retrieved(item_id))
            case events.Delete(item_id=item_id):
                await self._socket.send_json(self._conversation.deleted(item_id))

    async def _append(self, connection: Connection, audio: bytes) -> None:
        heard = self._config.input.format
        self._fresh_ms += len(audio) / heard.bytes_per_ms
        await connection.tell(Audio(self._whole(audio) if heard.law is None else g711.decode(audio, heard.law)))

    def _whole(self, pcm: bytes) -> bytes:
        """What is there of whole samples; an append may end inside one."""
        pcm = self._half + pcm
        whole = len(pcm) & ~1
        self._half = pcm[whole:]
        return pcm[:whole]

    def _begin_anew(self) -> None:
        """The buffer is empty, and the next byte is the first of a sample: half of one would turn all that follows into
        noise."""
        self._fresh_ms, self._half = 0.0, b""

    def _check_commit(self) -> None:
        if self._fresh_ms < _LEAST_COMMIT_MS:
            raise NothingToCommit(
                f"Nothing to commit: at least {_LEAST_COMMIT_MS} ms of audio is needed, "
                f"the buffer has {int(self._fresh_ms)} ms."
            )

    async def _update(self, connection: Connection, update: events.Update) -> None:
        config = self._updated(update)
        rules = self._house.rules_of(config)
        await self._services.live.prepare(rules)
        changed = config.input.format != self._config.input.format
        self._half = b"" if changed else self._half
        self._config = config
        answer = self._conversation.updated(config)
        await connection.tell(Configure(rules, config.input.format.rate_hz if changed else None))
        await self._socket.send_json(answer)

    def _updated(self, update: events.Update) -> Config:
        try:
            return self._house.updated(self._config, update.session)
        except InvalidInput as error:
            raise shapes.in_beta_words(error) if update.flat else error from None
