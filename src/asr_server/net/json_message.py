"""Parses a client's message as JSON in bounded time: while it is parsed, no other client is served."""

from __future__ import annotations

import json
from typing import Any

# Far more than a message needs that makes sense: it has one long text, or a list of up to 1000 words. Counted before
# parsing, and also where they are part of a text, which may have 16 000 characters.
_MAX_CONTAINERS = 2_000
_MAX_VALUES = 20_000
_MAX_DIGITS = 20  # of a whole number; the time for more grows with their square


def load(message: str | bytes) -> Any:
    """Return the value. Raises `ValueError` if it is not JSON in UTF-8 or has too many values, and `RecursionError` if
    it is nested too deeply."""
    text = message if isinstance(message, str) else message.decode()
    if text.count("[") + text.count("{") > _MAX_CONTAINERS or text.count(",") > _MAX_VALUES:
        raise ValueError("too many values")
    return json.loads(text, parse_int=_whole_number)


def _whole_number(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError("the number is too long")
    return int(digits)
