"""`WS /ws/transcribe`: audio and actions in, partial and final texts out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.types import Message

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import AsrError, InvalidInput
from asr_server.core.setting_types import Endpointing
from asr_server.live import actions
from asr_server.live.actions import TURN_LIKELY
from asr_server.live.inbox import RefusedAction
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import (
    Audio,
    Checkpoint,
    Configure,
    Configured,
    EndOfTurnLikely,
    Event,
    Final,
    Flush,
    GetCheckpoint,
    Partial,
    Reset,
    ResetDone,
    SessionError,
    TurnConfig,
)
from asr_server.live.outbox import MakePart, Outgoing, PartMessage
from asr_server.live.session import LiveConnection, LiveSessionOptions
from asr_server.live.sessions import PARTIAL_EVERY_BYTES
from asr_server.net import websocket_io
from asr_server.net.access import Caller
from asr_server.net.errors import live_error_message
from asr_server.recordings.requests import WordTimes
from asr_server.services import Services
from asr_server.text import languages

_PATH = "/ws/transcribe"
_WORD_TIMES = {"none": WordTimes.NONE, "accurate": WordTimes.ALIGNED, "fast": WordTimes.ESTIMATED}


def router(endpoint: Callable[[WebSocket], Awaitable[None]]) -> APIRouter:
    """Return the routes. `endpoint` serves a WebSocket, like `transcribe`."""
    made = APIRouter(tags=["live"])
    made.add_api_route(_PATH, websocket_io.refuse_plain_request, include_in_schema=False)
    made.add_api_websocket_route(_PATH, endpoint)
    return made


async def transcribe(socket: WebSocket) -> None:
    await socket.accept()
    await websocket_io.serve(socket, _run(socket, socket.app.state.services), live_error_message)


async def _run(socket: WebSocket, services: Services) -> None:
    query = actions.parse_query(socket.query_params)
    read = [each.read_opening(socket, query) for each in services.features if each.read_opening is not None]
    connection = await _connect(services, query, [part for part in reversed(read) if part is not None], socket)
    end: Message = {}
    try:
        await socket.send_json(_hello(services, connection, query))
        reader, writer = _read(socket, services, connection, query.decoder), _write(socket, connection)
        end = await websocket_io.read_and_write(reader, writer) or {}
    except AsrError as error:
        # Sent before disconnecting from the session: at shutdown the server waits for the client to read it.
        await websocket_io.end(socket, error, live_error_message, at_shutdown={"status": "reconnect"})
    finally:
        services.live.disconnect(connection, clean=websocket_io.closed_cleanly(end))


async def _connect(
    services: Services, query: actions.Query, parts: Sequence[MakePart], socket: WebSocket
) -> LiveConnection:
    """Return a connection to a new session, or to the session that the query resumes."""
    caller: Caller = socket.state.caller
    if query.session_id:
        return await services.live.resume(query.session_id, query.received, caller.owner)
    services.live.check_semantic(query.semantic)
    return await services.live.open(
        LiveSessionOptions(
            _rules(services, query),
            int(query.sample_rate),
            _WORD_TIMES[query.words],
            caller.owner,
            socket.state.place,
            query.reopened,
            query.turn_events,
            tuple(parts),
        )
    )


def _rules(services: Services, query: actions.Query) -> TurnConfig:
    model = services.catalog.find(query.model).resident if query.model else ""
    language = services.catalog.language(query.language, model)
    manual = services.settings.endpointing is Endpointing.MANUAL if query.manual is None else query.manual
    return services.live.turn_config(
        manual=manual, semantic=query.semantic, language=language, context=query.hotwords, model=model
    )


def _hello(services: Services, connection: LiveConnection, query: actions.Query) -> dict[str, object]:
    """The first message. For a resumed session it says what has arrived, and the client sends the rest again."""
    session, encoding = connection.session, query.decoder
    hello: dict[str, object] = {
        "status": "connected",
        "session_id": session.id,
        "sample_rate": session.input_rate_hz,
        "format": encoding.name,
        "buffer_size": PARTIAL_EVERY_BYTES,
        "overlap_size": 2 * services.live.margin_samples,
        "window_max_s": services.live.max_utterance_s,
        "use_server_vad": not session.rules.manual,
        "endpointing": endpointing(session.rules),
    }
    if query.session_id:
        received_bytes = session.received_bytes * encoding.sample_bytes // 2
        arrived = {"received_bytes": received_bytes, "actions": session.received_actions}
        hello |= {"resumed": True, **arrived}
    for part in session.parts:
        hello |= part.hello()
    return hello


async def _read(
    socket: WebSocket, services: Services, connection: LiveConnection, encoding: actions.Encoding
) -> Message:
    """Give every frame to the session. Return the message with which the client disconnected."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return message
        if (data := message.get("bytes")) is not None:
            await connection.send(Audio(encoding.pcm(data)))
        else:
            await _act(socket, services, connection, message.get("text") or "")


async def _act(socket: WebSocket, services: Services, connection: LiveConnection, text: str) -> None:
    """Perform the action of a text frame. An invalid one is answered with an error, and the session continues."""
    try:
        action = actions.parse_action(text)
        if action.action == "ping":
            await socket.send_json({"status": "pong"})
            return
        event = _event(services, connection, action)
        if isinstance(event, Configure):
            services.live.prepare(event.rules)
        await connection.send(event)
    except InvalidInput as error:
        if error.code == "session_taken":
            raise
        await socket.send_json(live_error_message(error))
        await connection.send(RefusedAction())


def _event(services: Services, connection: LiveConnection, action: actions.ClientAction) -> Event:
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


def _changed(services: Services, rules: TurnConfig, action: actions.ClientAction) -> TurnConfig:
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


async def _write(socket: WebSocket, connection: LiveConnection) -> None:
    async for outgoing in connection.messages():
        if (message := render(outgoing)) is not None:
            await socket.send_json(message)


def render(outgoing: Outgoing) -> dict[str, Any] | None:
    """Return the message for the client, or None if this protocol does not send it."""
    match outgoing.message:
        case Partial() as partial:
            return _text(partial, outgoing, partial.committed, partial.tentative)
        case Final() as final:
            known = {} if final.end_of_turn is None else {"end_of_turn": round(final.end_of_turn, 3)}
            return {**_text(final, outgoing, final.text, ""), "ending": final.ending.value, **known}
        case EndOfTurnLikely(utterance=utterance, probability=probability, end_samples=end_samples):
            return {
                "type": TURN_LIKELY,
                "utterance": utterance,
                "probability": round(probability, 3),
                "end": round(samples_to_s(end_samples), 3),
            }
        case WordTimestamps(utterance=utterance, words=words):
            return {"utterance": utterance, "words": [word.listed() for word in words]}
        case ResetDone():
            return {"status": "buffer_reset"}
        case Configured(rules=rules, asked_language=asked):
            return {
                "status": "configured",
                "language": asked or languages.code(rules.language or "") or "auto",
                "language_name": rules.language or "",
                "use_server_vad": not rules.manual,
                "endpointing": endpointing(rules),
            }
        case Checkpoint(end_samples=end_samples, utterance=utterance):
            return {"status": "settled", "seconds": samples_to_s(end_samples), "utterance": utterance}
        case SessionError() as error:
            return live_error_message(error)
        case PartMessage() as own:
            return own.wire()
        case _:
            return None


def endpointing(rules: TurnConfig) -> str:
    """Return how an utterance ends, in the terms of the query."""
    if rules.manual:
        return "manual"
    return "pause" if rules.end_of_turn is None else "semantic"


def _text(result: Partial | Final, outgoing: Outgoing, committed: str, tentative: str) -> dict[str, Any]:
    final = isinstance(result, Final)
    message = {
        "text": result.text,
        "is_partial": not final,
        "is_final": final,
        "committed": committed,
        "tentative": tentative,
        "utterance": result.utterance,
        "start": round(samples_to_s(result.start_samples), 3),
        "end": round(samples_to_s(result.end_samples), 3),
        "language": result.language,
        "language_code": languages.code(result.language),
        "lag_ms": outgoing.lag_ms,
    }
    return message | outgoing.details.fields() if outgoing.details is not None else message
