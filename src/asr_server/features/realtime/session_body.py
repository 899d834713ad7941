"""A session on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr_server.features.realtime.config import Config

# Keys that are sent as null; other keys without a value are omitted.
_NULLABLE = frozenset({"transcription", "noise_reduction", "turn_detection", "include", "language"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of a session, and when it expires, in Unix seconds."""

    id: str
    expires_at: int


def session_body(config: Config, identity: Identity) -> dict[str, Any]:
    """Return the session with its effective configuration."""
    return {
        "type": "transcription",
        "object": "realtime.transcription_session",
        "id": identity.id,
        "expires_at": identity.expires_at,
        "audio": {"input": _without_nulls(config.input.model_dump())},
        "include": config.include,
    }


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None or name in _NULLABLE
    }
