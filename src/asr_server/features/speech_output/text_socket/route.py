"""`WS /ws/speech`: a text in pieces in, its audio out while it arrives."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, WebSocket

from asr_server.core.errors import AsrError, InvalidInput, SlowReader
from asr_server.engine.catalog import Catalog
from asr_server.features.speech_output.fields import request_for
from asr_server.features.speech_output.outbox import SpokenAudio
from asr_server.features.speech_output.session import SpeechSession
from asr_server.features.speech_output.sessions import SpeechSessions
from asr_server.features.speech_output.text_socket.messages import (
    Cancel,
    ClientMessage,
    End,
    FlushText,
    Start,
    TextPiece,
    error_message,
    parse,
    render,
)
from asr_server.net import websocket_io
from asr_server.net.access import Caller
from asr_server.services import Services

router = APIRouter(tags=["speech"])

# Shorter than the time in which a client that does not read misses a ping.
_SEND_S = 10.0
_DEFAULTS = Start.model_validate({})

router.add_api_route("/ws/speech", websocket_io.refuse_plain_request, include_in_schema=False)


@router.websocket("/ws/speech")
async def speak(socket: WebSocket) -> None:
    """Speech while its text arrives."""
    await socket.accept()
    await websocket_io.serve(socket, _run(socket, socket.app.state.services), error_message)


async def _run(socket: WebSocket, services: Services) -> None:
    caller: Caller = socket.state.caller
    session = services.of(SpeechSessions).open(caller.share)
    try:
        if await websocket_io.read_and_write(_read(socket, session, services.catalog), _write(socket, session)) is None:
            await websocket_io.close(socket, 1000, "")
    except AsrError as error:
        # The client may not read. Only then is the connection reported as ended: at shutdown the server waits for that.
        await session.close()
        await websocket_io.end(socket, error, error_message)
    finally:
        await services.of(SpeechSessions).close(session, caller.owner)


async def _read(socket: WebSocket, session: SpeechSession, catalog: Catalog) -> bool:
    """Hand every message to the session. Returns True when the client has left."""
    while True:
        frame = await socket.receive()
        if frame["type"] == "websocket.disconnect":
            return True
        session.touch()
        try:
            await _act(session, parse(frame.get("text")), catalog)
        except InvalidInput as error:
            await socket.send_json(error_message(error))


async def _act(session: SpeechSession, message: ClientMessage, catalog: Catalog) -> None:
    if isinstance(message, Start):
        await session.start(request_for(message, "", catalog))
        return
    if not session.started:
        await session.start(request_for(_DEFAULTS, "", catalog))
    match message:
        case TextPiece(text=text):
            await session.push(text)
        case FlushText():
            session.flush()
        case Cancel():
            await session.cancel()
        case End():
            session.end()


async def _write(socket: WebSocket, session: SpeechSession) -> None:
    async for event in session.events():
        try:
            async with asyncio.timeout(_SEND_S):
                if isinstance(event, SpokenAudio):
                    await socket.send_bytes(event.data)
                else:
                    await socket.send_json(render(event))
        except TimeoutError:
            raise SlowReader(f"The client took nothing for {_SEND_S:g} seconds.") from None
