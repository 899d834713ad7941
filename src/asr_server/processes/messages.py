"""Messages between the server and another of its processes: a header, a JSON object, binary data."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

HEADER = struct.Struct("<II")  # bytes of JSON, bytes of data
# The data holds up to eight minutes of audio at 16 kHz, and a row has at most two minutes.
MAX_JSON_BYTES, MAX_DATA_BYTES = 16 * 2**20, 32 * 2**20


class Message(NamedTuple):
    """A request or an answer."""

    content: dict[str, Any]
    data: bytes


def packed(content: dict[str, Any], data: bytes = b"") -> bytes:
    """Pack a message. Raises ValueError if it is over the limits."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return header(len(text), len(data)) + text + data


def header(text_bytes: int, data_bytes: int) -> bytes:
    """Return the header of a message. Raises ValueError if the message is over the limits: it would end the process
    that reads it."""
    packed = HEADER.pack(text_bytes, data_bytes)
    sizes(packed)
    return packed


def read(exactly: Callable[[int], bytes], most_bytes: int = MAX_JSON_BYTES + MAX_DATA_BYTES) -> Message | None:
    """Return the next message, or None at the end. `exactly` reads that many bytes, or fewer at the end. Raises
    ValueError if the message is over the limits or has no object."""
    header = exactly(HEADER.size)
    if not header:
        return None
    text_bytes, data_bytes = sizes(header, most_bytes)  # checked before anything is read: the sender is not trusted
    return Message(content(exactly(text_bytes)), exactly(data_bytes))


def content(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a message. Raises ValueError if there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("a message without an object")
    return found


def sizes(header: bytes | bytearray, most_bytes: int = MAX_JSON_BYTES + MAX_DATA_BYTES) -> tuple[int, int]:
    """Return the sizes of the JSON and of the data. Raises ValueError if they are over the limits."""
    text_bytes, data_bytes = HEADER.unpack(header)
    if text_bytes > MAX_JSON_BYTES or data_bytes > MAX_DATA_BYTES or text_bytes + data_bytes > most_bytes:
        raise ValueError(f"a message of {text_bytes} and {data_bytes} bytes")
    return text_bytes, data_bytes
