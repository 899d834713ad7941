"""Messages between the server and a child process: a header, a JSON object, binary data."""

from __future__ import annotations

import json
import struct
from typing import Any

HEADER = struct.Struct("<II")  # bytes of JSON, bytes of data
MAX_JSON_BYTES, MAX_DATA_BYTES = 16 * 2**20, 8 * 2**20


def packed(content: dict[str, Any], data: bytes = b"") -> bytes:
    """Pack a message. Raises ValueError if it is over the limits."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return HEADER.pack(*_checked(len(text), len(data))) + text + data


def sizes(header: bytes) -> tuple[int, int]:
    """Return the sizes of the two parts. Raises ValueError if they are over the limits."""
    return _checked(*HEADER.unpack(header))


def _checked(text_bytes: int, data_bytes: int) -> tuple[int, int]:
    if text_bytes > MAX_JSON_BYTES or data_bytes > MAX_DATA_BYTES:
        raise ValueError(f"a message of {text_bytes} and {data_bytes} bytes")
    return text_bytes, data_bytes
