"""The events of a realtime client, parsed: one class for each. docs/use/realtime.md has the table."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asr_server.core.errors import InvalidEvent, InvalidType, InvalidValue, MissingParameter, UnsupportedValue
from asr_server.net import websocket_io

MAX_APPEND_BYTES = 15 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Update:
    """Change the configuration."""

    session: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Append:
    """The next audio, in the format of the session."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """End the open turn."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Discard the open turn."""


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Return an item."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget an item."""

    item_id: str


ClientEvent = Update | Append | Commit | Clear | Retrieve | Delete


def load(frame: str | bytes) -> dict[str, Any]:
    """Return a frame as a JSON object. Raises `InvalidEvent`."""
    try:
        event = websocket_io.parse_json(frame)
    except (ValueError, RecursionError):
        raise InvalidEvent("The message is not valid JSON, or has too many values.") from None
    if not isinstance(event, dict):
        raise InvalidEvent("The message must be a JSON object with a 'type'.")
    return event


def event_id(event: Mapping[str, Any]) -> str | None:
    """Return the id that the client gave its event, which an error repeats, or None."""
    found = event.get("event_id")
    return found if isinstance(found, str) and len(found) <= 512 and _is_utf8_json(found) else None


def parse(event: Mapping[str, Any]) -> ClientEvent:
    """Return the event of a JSON object; unknown keys are ignored. Raises `InvalidInput` that names the parameter."""
    kind = event.get("type")
    if not isinstance(kind, str):
        raise InvalidEvent("The message has no 'type'.", param="type")
    if kind in SPEECH_EVENTS:
        raise UnsupportedValue("A transcription session has no such event.", param="type")
    if kind not in PARSERS:
        raise InvalidValue(f"Unknown event type; known are {', '.join(PARSERS)}.", param="type")
    return PARSERS[kind](event)


def _update(event: Mapping[str, Any]) -> ClientEvent:
    return Update(_object(event, "session"))


def _append(event: Mapping[str, Any]) -> ClientEvent:
    text = _text(event, "audio")
    try:
        audio = base64.b64decode("".join(text.split()), validate=True)  # encoders may break lines
    except (binascii.Error, ValueError):
        raise InvalidValue("Invalid value for 'audio': not base64.", param="audio") from None
    if len(audio) > MAX_APPEND_BYTES:
        raise InvalidValue("Invalid value for 'audio': more than 15 MiB in one event.", param="audio")
    return Append(audio)


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = event.get(name)
    if value is None:
        raise MissingParameter(f"Missing required parameter: '{name}'.", param=name)
    if not isinstance(value, dict):
        raise InvalidType(f"Invalid type for '{name}': expected an object.", param=name)
    if not _is_utf8_json(value):
        raise InvalidValue(f"Invalid value for '{name}': it cannot be written as JSON in UTF-8.", param=name)
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
        raise MissingParameter(f"Missing required parameter: '{name}'.", param=name)
    if not isinstance(value, str):
        raise InvalidType(f"Invalid type for '{name}': expected a string.", param=name)
    return value


PARSERS: dict[str, Callable[[Mapping[str, Any]], ClientEvent]] = {
    "session.update": _update,
    "input_audio_buffer.append": _append,
    "input_audio_buffer.commit": lambda _: Commit(),
    "input_audio_buffer.clear": lambda _: Clear(),
    "conversation.item.retrieve": lambda event: Retrieve(_text(event, "item_id")),
    "conversation.item.delete": lambda event: Delete(_text(event, "item_id")),
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
