"""The events of a realtime client, parsed. docs/use/realtime.md has the table."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any

from asr_server.core.errors import InvalidInput
from asr_server.net import websocket_io

MAX_APPEND_BYTES = 15 * 1024 * 1024


def load(frame: str | bytes) -> dict[str, Any]:
    """Return a frame as a JSON object. Raises `invalid_event`."""
    try:
        event = websocket_io.parse_json(frame)
    except (ValueError, RecursionError):
        raise InvalidInput("The message is not valid JSON, or has too many values.", code="invalid_event") from None
    if not isinstance(event, dict):
        raise InvalidInput("The message must be a JSON object with a 'type'.", code="invalid_event")
    return event


def event_id(event: Mapping[str, Any]) -> str | None:
    """Return the id that the client gave its event, which an error repeats, or None."""
    found = event.get("event_id")
    return found if isinstance(found, str) and len(found) <= 512 and _is_utf8_json(found) else None


def parse(event: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the type and the content of an event; see `PARSERS`. Unknown keys are ignored. Raises `InvalidInput`
    that names the parameter."""
    kind = event.get("type")
    if not isinstance(kind, str):
        raise InvalidInput("The message has no 'type'.", code="invalid_event", param="type")
    if kind in SPEECH_EVENTS:
        raise InvalidInput("A transcription session has no such event.", code="unsupported_value", param="type")
    if kind not in PARSERS:
        raise InvalidInput(f"Unknown event type; known are {', '.join(PARSERS)}.", param="type")
    return kind, PARSERS[kind](event)


def _audio(event: Mapping[str, Any]) -> bytes:
    text = _text(event, "audio")
    try:
        audio = base64.b64decode("".join(text.split()), validate=True)  # encoders may break lines
    except (binascii.Error, ValueError):
        raise InvalidInput("Invalid value for 'audio': not base64.", param="audio") from None
    if len(audio) > MAX_APPEND_BYTES:
        raise InvalidInput("Invalid value for 'audio': more than 15 MiB in one event.", param="audio")
    return audio


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = event.get(name)
    if value is None:
        raise InvalidInput(f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name)
    if not isinstance(value, dict):
        raise InvalidInput(f"Invalid type for '{name}': expected an object.", code="invalid_type", param=name)
    if not _is_utf8_json(value):
        raise InvalidInput(f"Invalid value for '{name}': it cannot be written as JSON in UTF-8.", param=name)
    return value


def _is_utf8_json(value: Any) -> bool:
    """True if the value can be sent back: JSON may hold lone surrogates, which UTF-8 cannot encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (RecursionError, UnicodeEncodeError):
        return False
    return True


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    if value is None:
        raise InvalidInput(f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name)
    if not isinstance(value, str):
        raise InvalidInput(f"Invalid type for '{name}': expected a string.", code="invalid_type", param=name)
    return value


# The parser for the content of each type of event.
PARSERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "session.update": lambda event: _object(event, "session"),
    "input_audio_buffer.append": _audio,
    "input_audio_buffer.commit": lambda _: None,
    "input_audio_buffer.clear": lambda _: None,
    "conversation.item.retrieve": lambda event: _text(event, "item_id"),
    "conversation.item.delete": lambda event: _text(event, "item_id"),
}
# Events of sessions with spoken responses.
SPEECH_EVENTS = frozenset(
    {
        "conversation.item.create",
        "conversation.item.truncate",
        "output_audio_buffer.clear",
        "response.cancel",
        "response.create",
    }
)
