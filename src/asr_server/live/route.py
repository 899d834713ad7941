"""`WS /ws/transcribe`: audio and actions in, partial and final texts out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, WebSocket
from starlette.types import Message

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import AsrError, InvalidInput
from asr_server.core.setting_types import Endpointing
from asr_server.live.actions import ClientAction, Query, parse_action, parse_query
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
from asr_server.live.outbox import Decode, MakePart, Outgoing, PartMessage
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


router = APIRouter(tags=["live"])
router.add_api_route(_PATH, websocket_io.refuse_plain_request, include_in_schema=False)


@router.websocket(_PATH)
async def transcribe(socket: WebSocket) -> None:
    await socket.accept()
    await websocket_io.serve(socket, _run(socket, socket.app.state.services), live_error_message)


async def _run(socket: WebSocket, services: Services) -> None:
    query = parse_query(socket.query_params)
    async with _decoding(services, query) as decode:
        readers = filter(None, (feature.read_opening for feature in services.features))
        parts = [part for read in readers if (part := read(socket, query)) is not None]
        connection = await _connect(services, query, parts, socket)
        await _serve(socket, services, connection, query, decode)


def _decoding(services: Services, query: Query) -> AbstractAsyncContextManager[Decode]:
    """Return a context manager that opens the decoder of the client's frames."""
    if query.encoding != "opus":

        async def decode(data: bytes) -> bytes:
            return query.decoder.pcm(data)

        return nullcontext(decode)
    opus = next((feature.opus for feature in services.features if feature.opus is not None), None)
    if opus is None or query.session_id:
        # Positions are counted in bytes of PCM, which the client of such a session does not know.
        reason = "This server does not decode Opus." if opus is None else "A session of Opus cannot be resumed."
        raise InvalidInput(reason, code="unsupported_value", param="encoding")
    return opus(int(query.sample_rate))


async def _serve(
    socket: WebSocket, services: Services, connection: LiveConnection, query: Query, decode: Decode
) -> None:
    end: Message = {}
    try:
        await socket.send_json(_hello(services, connection, query))
        reader, writer = _read(socket, services, connection, decode), _write(socket, connection)
        end = await websocket_io.read_and_write(reader, writer) or {}
    except AsrError as error:
        # Sent before disconnecting from the session: at shutdown the server waits for the client to read it.
        await websocket_io.end(socket, error, live_error_message, at_shutdown={"status": "reconnect"})
    finally:
        services.live.disconnect(connection, clean=websocket_io.closed_cleanly(end))


async def _connect(services: Services, query: Query, parts: Sequence[MakePart], socket: WebSocket) -> LiveConnection:
    """Return a connection to a new session, or to the session that the query resumes."""
    caller: Caller = socket.state.caller
    if query.session_id:
        return await services.live.resume(query.session_id, query.received, caller.owner)
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


def _rules(services: Services, query: Query) -> TurnConfig:
    model = services.catalog.find(query.model).resident if query.model else ""
    language = services.catalog.language(query.language, model)
    manual = services.settings.endpointing is Endpointing.MANUAL if query.manual is None else query.manual
    return services.live.turn_config(
        manual=manual, semantic=query.semantic, language=language, context=query.hotwords, model=model
    )


def _hello(services: Services, connection: LiveConnection, query: Query) -> dict[str, object]:
    """Return the first message. For a resumed session it says how much has arrived; the client sends the rest."""
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


async def _read(socket: WebSocket, services: Services, connection: LiveConnection, decode: Decode) -> Message:
    """Give every frame to the session. Return the message with which the client disconnected."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return message
        if (data := message.get("bytes")) is not None:
            await connection.send(Audio(await decode(data)))
        else:
            await _act(socket, services, connection, message.get("text") or "")


async def _act(socket: WebSocket, services: Services, connection: LiveConnection, text: str) -> None:
    """Perform the action of a text frame. An invalid one is answered with an error, and the session continues."""
    try:
        action = parse_action(text)
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


def _event(services: Services, connection: LiveConnection, action: ClientAction) -> Event:
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


def _changed(services: Services, rules: TurnConfig, action: ClientAction) -> TurnConfig:
    if action.language is not None:
        language = languages.normalize(action.language)
        services.catalog.check_language(language, model=rules.model)
        rules = replace(rules, language=language)
    if action.words is not None:
        rules = replace(rules, context=action.words)
    if action.manual is None:
        return rules
    endings = services.live.turn_config(manual=action.manual, semantic=action.semantic)
    return replace(rules, manual=endings.manual, end_of_turn=endings.end_of_turn)


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
                "type": "turn.likely",
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
