"""`WS /ws/transcribe`: PCM and actions in, partials and finals out. The JSON is in `live_wire.py`."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, WebSocket
from loguru import logger
from starlette.websockets import WebSocketDisconnect

from asr_server.api import errors as error_table
from asr_server.api import websocket_io
from asr_server.api.dependencies import Services
from asr_server.api.disconnect import ended_in_order
from asr_server.api.edge.access import Caller
from asr_server.api.live import messages as wire
from asr_server.api.metrics.metrics import count_error
from asr_server.core.errors import AsrError, InvalidInput, SessionTaken, ShuttingDown
from asr_server.live.events import Audio, Configure, Detection, Event, Flush, GetCheckpoint, Reset, TurnConfig
from asr_server.service.live_session.session import Connection
from asr_server.service.live_session.sessions import LiveSessionOptions
from asr_server.service.requests import WordTimes
from asr_server.text import languages

router = APIRouter(tags=["live"])
_WORDS = {"none": WordTimes.NONE, "accurate": WordTimes.ALIGNED, "fast": WordTimes.ESTIMATED}


@router.websocket("/ws/transcribe")
async def transcribe(socket: WebSocket) -> None:
    """Live transcription."""
    services: Services = socket.app.state.services
    await socket.accept()
    try:
        await _serve(socket, services)
    except AsrError as error:
        await _end(socket, error)
    except (WebSocketDisconnect, OSError):
        return
    except Exception as error:  # the edge: a fault of ours is logged once and told without its details
        logger.opt(exception=error).error("live socket failed")
        await _end(socket, AsrError("The server failed on this session; the log has the details."))


async def _serve(socket: WebSocket, services: Services) -> None:
    query = wire.parse_query(socket.query_params)
    connection = await _connection(services, query, socket.state.caller)
    clean = False
    try:
        await socket.send_json(_hello(services, connection, query))
        clean = await _talk(socket, services, connection)
    except AsrError as error:
        await _end(socket, error)  # before leaving: at shutdown the server waits for that, and then cuts
    finally:
        services.live.leave(connection, clean=clean)


async def _connection(services: Services, query: wire.Query, caller: Caller) -> Connection:
    if query.session_id:
        return await services.live.resume(query.session_id, query.received, caller.owner)
    use_voice = services.settings.asr_use_server_vad if query.use_server_vad is None else query.use_server_vad
    rules = services.live.rules(
        use_voice=use_voice, language=languages.normalize(query.language), context=query.hotwords
    )
    wanted = LiveSessionOptions(rules, int(query.sample_rate), _WORDS[query.words], caller.owner)
    return await services.live.open(wanted)


def _hello(services: Services, connection: Connection, query: wire.Query) -> dict[str, object]:
    """The first message. A resumed session says how many bytes have arrived, so that the client goes on from there."""
    session, settings = connection.session, services.settings
    hello: dict[str, object] = {
        "status": "connected",
        "session_id": session.id,
        "sample_rate": session.input_rate_hz,
        "format": "pcm_s16le",
        "buffer_size": settings.ws_buffer_size,
        "overlap_size": settings.ws_overlap_size,
        "window_max_s": settings.ws_utterance_max_s,
        "use_server_vad": session.rules.detection is Detection.VOICE,
    }
    if query.session_id:
        hello |= {"resumed": True, "received_bytes": session.received_bytes}
    return hello


async def _talk(socket: WebSocket, services: Services, connection: Connection) -> bool:
    """Read and write until either ends. Returns whether the client ended it in order."""
    return await websocket_io.read_and_write(_read(socket, services, connection), _write(socket, connection)) or False


async def _read(socket: WebSocket, services: Services, connection: Connection) -> bool:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return ended_in_order(message)
        if (pcm := message.get("bytes")) is not None:
            await connection.tell(Audio(pcm))
        else:
            await _act(socket, services, connection, message.get("text") or "")


async def _act(socket: WebSocket, services: Services, connection: Connection, text: str) -> None:
    """One text frame. What is wrong with it is told, and the session goes on."""
    try:
        action = wire.parse_action(text)
        if action.action == "ping":
            await socket.send_json({"status": "pong"})
            return
        event = _event(services, connection, action)
        if isinstance(event, Configure):
            await services.live.prepare(event.rules)
        await connection.tell(event)
    except SessionTaken:
        raise
    except InvalidInput as error:
        await socket.send_json(wire.render_error(error))


def _event(services: Services, connection: Connection, action: wire.Action) -> Event:
    match action.action:
        case "flush":
            return Flush()
        case "reset":
            return Reset()
        case "settled":
            return GetCheckpoint()
        case _:
            return Configure(_changed(services, connection.session.rules, action))


def _changed(services: Services, rules: TurnConfig, action: wire.Action) -> TurnConfig:
    if action.language is not None:
        rules = replace(rules, language=languages.normalize(action.language))
    if action.words is not None:
        rules = replace(rules, context=action.words)
    if action.use_server_vad is not None:
        rules = services.live.rules(use_voice=action.use_server_vad, language=rules.language, context=rules.context)
    return rules


async def _write(socket: WebSocket, connection: Connection) -> None:
    async for outgoing in connection.messages():
        message = wire.render(outgoing)
        if message is not None:
            await socket.send_json(message)


async def _end(socket: WebSocket, error: AsrError) -> None:
    """Tell the error, then close with its code."""
    message = None if isinstance(error, ShuttingDown) else wire.render_error(error)
    count_error(socket, error)
    await websocket_io.close_with_error(socket, error_table.TABLE[error.code].ws_close, error.code, message)
