"""`WS /ws/transcribe`: audio and actions in, partial and final texts out."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, WebSocket
from starlette.types import Message, Receive, Scope, Send

from asr_server.core.audio import s_to_samples
from asr_server.core.errors import AsrError, InvalidInput, SessionTaken
from asr_server.features.handover import continuation_wire as continuation
from asr_server.features.handover.continuation import ShownUtterance
from asr_server.features.handover.continuation_wire import ContinueRequest
from asr_server.features.handover.handover import HandoverOptions
from asr_server.features.handover.offset import Offset
from asr_server.features.stereo import two_channels
from asr_server.live import actions, messages
from asr_server.live.connection import Connection
from asr_server.live.inbox import RefusedAction
from asr_server.live.machine.events import Audio, Configure, Detection, Event, Flush, GetCheckpoint, Reset, TurnConfig
from asr_server.live.options import LiveSessionOptions
from asr_server.net import websocket_io
from asr_server.net.access import Caller
from asr_server.net.errors import live_error_message
from asr_server.recordings.requests import WordTimes
from asr_server.services import Services
from asr_server.text import languages

router = APIRouter(tags=["live"])
_WORD_TIMES = {"none": WordTimes.NONE, "accurate": WordTimes.ALIGNED, "fast": WordTimes.ESTIMATED}

router.add_api_route("/ws/transcribe", websocket_io.refuse_plain_request, include_in_schema=False)


@router.websocket("/ws/transcribe")
async def transcribe(socket: WebSocket) -> None:
    """Live transcription."""
    await socket.accept()
    if two_channels.asked_for(socket):
        work = two_channels.serve(socket, _transcribe_one)
    else:
        work = _run(socket, socket.app.state.services)
    await websocket_io.serve(socket, work, live_error_message)


async def _transcribe_one(scope: Scope, receive: Receive, send: Send) -> None:
    await transcribe(WebSocket(scope, receive, send))


async def _run(socket: WebSocket, services: Services) -> None:
    query = actions.parse_query(socket.query_params)
    asked = await _asked_to_continue(socket, query)
    connection = await _connect(services, query, asked, socket)
    end: Message = {}
    try:
        await socket.send_json(_hello(services, connection, query))
        reader, writer = _read(socket, services, connection), _write(socket, connection)
        end = await websocket_io.read_and_write(reader, writer) or {}
    except AsrError as error:
        # Before the session is left: at shutdown the server waits for the client to read this, and then cuts.
        await websocket_io.end(socket, error, live_error_message)
    finally:
        clean, code = websocket_io.closed_cleanly(end), end.get("code")
        resumable, moved = code != websocket_io.DISCARD, code == websocket_io.MOVED
        services.live.disconnect(connection, clean=clean, resumable=resumable, moved=moved)


async def _asked_to_continue(socket: WebSocket, query: actions.Query) -> ContinueRequest | None:
    if not (query.handover and query.session_id):
        return None
    return await continuation.read_frame(socket, query.session_id, query.received)


async def _connect(
    services: Services, query: actions.Query, asked: ContinueRequest | None, socket: WebSocket
) -> Connection:
    """A connection to a new session, or to the one that the query resumes or continues."""
    caller: Caller = socket.state.caller
    if query.session_id and asked is None:
        return await services.live.resume(query.session_id, query.received, caller.owner)
    query_rules = rules = _rules(services, query)
    begin = asked.state if asked is not None else None
    if begin is not None and (configured := begin.configured) is not None:
        language = languages.normalize(configured.language)
        services.catalog.check_language(language, model=rules.model)
        rules = services.live.turn_config(
            manual=configured.manual,
            semantic=configured.semantic,
            language=language,
            context=configured.hotwords,
            model=rules.model,
        )
    handover = None
    if query.handover:
        shown = asked.shown if asked is not None else ShownUtterance()
        handover = HandoverOptions(query_rules, begin, shown, query.received)
    options = LiveSessionOptions(
        rules,
        int(query.sample_rate),
        _WORD_TIMES[query.words],
        caller.owner,
        socket.state.place,
        query.speakers,
        begin.first_speaker if begin is not None else query.first_speaker,
        handover,
        # From a client it would be a claim to go first.
        query.began_s if services.settings.gateway_mode else None,
        turn_events=query.turn_events,
    )
    if begin is not None:
        return await services.live.go_on(begin, query.received, options)
    return await services.live.open(options)


def _rules(services: Services, query: actions.Query) -> TurnConfig:
    """What the query asks for."""
    language = languages.normalize(query.language)
    model = services.catalog.find(query.model).resident if query.model else ""
    services.catalog.check_language(language, model=model)
    manual = query.manual
    if manual is None:
        manual = not services.settings.asr_use_server_vad
    services.live.check_semantic(query.semantic)
    return services.live.turn_config(
        manual=manual, semantic=query.semantic, language=language, context=query.hotwords, model=model
    )


def _hello(services: Services, connection: Connection, query: actions.Query) -> dict[str, object]:
    """The first message. For a resumed session it says how many bytes have arrived; the client sends the rest again."""
    session, settings = connection.session, services.settings
    hello: dict[str, object] = {
        "status": "connected",
        "session_id": session.id,
        "sample_rate": session.input_rate_hz,
        "format": "pcm_s16le",
        "buffer_size": settings.ws_buffer_size,
        "overlap_size": 2 * s_to_samples(settings.vad_suffix_ms / 1000),
        "window_max_s": services.live.max_utterance_s,
        "use_server_vad": session.rules.detection is Detection.VOICE,
        "endpointing": messages.endpointing(session.rules),
    }
    if session.speakers is not None:
        hello["speakers"] = not session.speakers.lost
    if query.session_id:
        hello |= {"resumed": True, "received_bytes": session.received_bytes}
    if session.handover is not None:
        if query.session_id:
            hello["actions"] = session.received_actions
        if connection.is_first:
            hello |= {"continued": True} if query.session_id else {}
            hello["continuation"] = continuation.message(session.handover.newest)
    return hello


async def _read(socket: WebSocket, services: Services, connection: Connection) -> Message:
    """Hand every frame to the session. Returns how the client closed the socket."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return message
        if (pcm := message.get("bytes")) is not None:
            await connection.send(Audio(pcm))
        else:
            await _act(socket, services, connection, message.get("text") or "")


async def _act(socket: WebSocket, services: Services, connection: Connection, text: str) -> None:
    """One text frame. A frame with an error is answered with that error, and the session goes on."""
    try:
        action = actions.parse_action(text)
        if action.action == "ping":
            await socket.send_json({"status": "pong"})
            return
        event = _event(services, connection, action)
        if isinstance(event, Configure):
            services.live.prepare(event.rules)
        await connection.send(event)
    except SessionTaken:
        raise
    except InvalidInput as error:
        await socket.send_json(live_error_message(error))
        await connection.send(RefusedAction())


def _event(services: Services, connection: Connection, action: actions.Action) -> Event:
    match action.action:
        case "flush":
            return Flush()
        case "reset":
            return Reset()
        case "settled":
            return GetCheckpoint()
        case _:
            rules = _changed(services, connection.session.rules, action)
            return Configure(rules, asked_language=action.language or "")


def _changed(services: Services, rules: TurnConfig, action: actions.Action) -> TurnConfig:
    if action.language is not None:
        language = languages.normalize(action.language)
        services.catalog.check_language(language, model=rules.model)
        rules = replace(rules, language=language)
    if action.words is not None:
        rules = replace(rules, context=action.words)
    if action.manual is None:
        return rules
    services.live.check_semantic(action.semantic)
    return services.live.turn_config(
        manual=action.manual,
        semantic=action.semantic,
        language=rules.language,
        context=rules.context,
        model=rules.model,
    )


async def _write(socket: WebSocket, connection: Connection) -> None:
    handover = connection.session.handover
    offset = Offset(handover.begin.utterances, handover.offset_s) if handover is not None else Offset()
    async for outgoing in connection.messages():
        message = messages.render(outgoing)
        if message is not None:
            await socket.send_json(offset.applied(message) if handover is not None else message)
