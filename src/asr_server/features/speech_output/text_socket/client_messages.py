"""The messages that a client of `WS /ws/speech` may send."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ValidationError

from asr_server.core.errors import InvalidValue, MalformedBody
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.fields import SpeechOptions, StreamedFormat, Text
from asr_server.net import websocket_io

# A piece of text is a few words; a whole text of the usual limit fits, however it is escaped.
MAX_MESSAGE_CHARS = 256 * 1024


class Start(SpeechOptions):
    """Set the options of speaking for the texts of the socket."""

    type: Literal["start"] = "start"
    response_format: StreamedFormat = SpeechFormat.PCM


class TextPiece(BaseModel):
    """The next piece of the text."""

    type: Literal["text"]
    text: Text


class FlushText(BaseModel):
    """Speak the text that has arrived."""

    type: Literal["flush"]


class Cancel(BaseModel):
    """Stop speaking and forget the text that has arrived."""

    type: Literal["cancel"]


class End(BaseModel):
    """Speak the text that has arrived, then close."""

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

    Raises `MalformedBody` for what is no JSON object, `InvalidValue` with the field at fault.
    """
    if text is None:
        raise MalformedBody("Binary frames have no meaning here: messages are text frames of JSON.")
    if len(text) > MAX_MESSAGE_CHARS:
        raise MalformedBody(f"The message has more than {MAX_MESSAGE_CHARS} characters: send the text in pieces.")
    try:
        values = websocket_io.parse_json(text)
    except (ValueError, RecursionError):
        raise MalformedBody("The message is not valid JSON, or has too many values.") from None
    if not isinstance(values, dict):
        raise MalformedBody("The message must be a JSON object with a 'type'.")
    kind = values.get("type")
    model = MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise InvalidValue(f"Unknown 'type'. There are: {', '.join(MODELS)}.", param="type")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0]) if first["loc"] else None
        raise InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param) from None
