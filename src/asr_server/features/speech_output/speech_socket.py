"""`WS /ws/speech`, which speaks a text while it arrives: its messages, the tables of docs about them, and its route."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel

from asr_server.core.errors import AsrError, InvalidInput
from asr_server.engine.catalog import Catalog
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.requests import SpeechOptions, StreamedFormat, Text
from asr_server.features.speech_output.session import Send, SpeechSession, SpeechSessions
from asr_server.net import body, websocket_io
from asr_server.net.access import Caller
from asr_server.net.errors import CodedError, Json, error_body
from asr_server.services import Services

# A piece of text is a few words; a whole text of the usual limit fits, however it is escaped.
MAX_MESSAGE_CHARS = 256 * 1024


# The docstrings of these models are a table of the docs.
class Start(SpeechOptions):
    """Set `voice`, `language`, `response_format` (default `pcm`), `speed`, `instructions`, `seed`, `spell_out` or
    `pause_ms`; optional first message; answered by `started`."""

    type: Literal["start"] = "start"
    response_format: StreamedFormat = SpeechFormat.PCM


class TextPiece(BaseModel):
    """`text`: the next piece, cut anywhere."""

    type: Literal["text"]
    text: Text


class FlushText(BaseModel):
    """Speak all that has arrived, also part of a sentence; answered by `flushed`."""

    type: Literal["flush"]


class Cancel(BaseModel):
    """Stop at once and forget all text; answered by `cancelled`."""

    type: Literal["cancel"]


class End(BaseModel):
    """Speak the rest; answered by `done` and close code 1000."""

    type: Literal["end"]


ClientMessage = Start | TextPiece | FlushText | Cancel | End
MODELS: dict[str, type[ClientMessage]] = {
    "start": Start,
    "text": TextPiece,
    "flush": FlushText,
    "cancel": Cancel,
    "end": End,
}


def parse(text: str | None) -> ClientMessage:
    """Return the message in a text frame. `text` is None for a binary frame.

    Raises `malformed_body` if it is not a JSON object, and `invalid_value` with the field at fault.
    """
    if text is None:
        raise InvalidInput(
            "Binary frames have no meaning here: messages are text frames of JSON.", code="malformed_body"
        )
    if len(text) > MAX_MESSAGE_CHARS:
        raise InvalidInput(
            f"The message has more than {MAX_MESSAGE_CHARS} characters: send the text in pieces.", code="malformed_body"
        )
    try:
        values = websocket_io.parse_json(text)
    except (ValueError, RecursionError):
        raise InvalidInput("The message is not valid JSON, or has too many values.", code="malformed_body") from None
    if not isinstance(values, dict):
        raise InvalidInput("The message must be a JSON object with a 'type'.", code="malformed_body")
    kind = values.get("type")
    model = MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidInput(f"Unknown 'type'. There are: {', '.join(MODELS)}.", param="type")
    return body.validated(model, values)


def error_message(error: CodedError) -> Json:
    return {"type": "error", **error_body(error)}


SERVER: dict[str, str] = {
    "started": "`id` (in the log), `sample_rate`, `format`, `ignored` (options without effect)",
    "sentence": "`index` from 0, `text`, `start_ms`; its audio follows",
    "sentence_done": "`index`, `duration_ms` with the pause before it",
    "flushed": "everything before the `flush` was sent",
    "cancelled": "`sentences_done`, `sent_ms`; nothing follows of the old text",
    "done": "`sentences`, `duration_ms` in all",
    "error": "`error` with `message`, `type`, `param` and `code`",
}


router = APIRouter(tags=["speech"])

# Shorter than the time after which a client that does not read misses a ping.
_SEND_S = 10.0
_DEFAULTS = Start.model_validate({})

router.add_api_route("/ws/speech", websocket_io.refuse_plain_request, include_in_schema=False)


@router.websocket("/ws/speech")
async def speak(socket: WebSocket) -> None:
    """Speech while its text arrives."""
    await socket.accept()
    await websocket_io.serve(socket, _run(socket, socket.app.state.services), error_message)


async def _run(socket: WebSocket, services: Services) -> None:
    async def send(message: Json | bytes) -> None:
        async with asyncio.timeout(_SEND_S):
            await (socket.send_bytes(message) if isinstance(message, bytes) else socket.send_json(message))

    caller: Caller = socket.state.caller
    session = services.of(SpeechSessions).open(send, caller.share)
    try:
        if await websocket_io.read_and_write(_read(socket, session, send, services.catalog), session.run()) is None:
            await websocket_io.close(socket, 1000, "")
    except (AsrError, TimeoutError) as error:
        # The client may not read. Report the connection as ended only after this: at shutdown the server waits for it.
        await session.stop()
        slow = InvalidInput(f"The client took nothing for {_SEND_S:g} seconds.", code="slow_reader")
        await websocket_io.end(socket, error if isinstance(error, AsrError) else slow, error_message)
    finally:
        await services.of(SpeechSessions).close(session, caller.owner)


async def _read(socket: WebSocket, session: SpeechSession, send: Send, catalog: Catalog) -> bool:
    """Hand every message to the session. Returns True when the client has left."""
    while True:
        frame = await socket.receive()
        if frame["type"] == "websocket.disconnect":
            return True
        session.touch()
        try:
            await _act(session, parse(frame.get("text")), catalog)
        except InvalidInput as error:
            await send(error_message(error))


async def _act(session: SpeechSession, message: ClientMessage, catalog: Catalog) -> None:
    if isinstance(message, Start):
        catalog.find_speech(message.model)
        await session.start(message)
        return
    if not session.started:
        await session.start(_DEFAULTS)
    match message:
        case TextPiece(text=text):
            await session.push(text)
        case FlushText():
            session.flush()
        case Cancel():
            await session.cancel()
        case End():
            session.flush(ends=True)
