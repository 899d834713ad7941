"""The two forms of a session on the wire: nested in the GA protocol, flat in the beta protocol.

The server uses one form for a whole connection; an update may come in either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr_server.core.errors import InvalidInput, InvalidType, InvalidValue, UnknownParameter
from asr_server.features.realtime.config import Config

_FORMATS: dict[str, dict[str, Any]] = {
    "pcm16": {"type": "audio/pcm", "rate": 24_000},
    "g711_ulaw": {"type": "audio/pcmu"},
    "g711_alaw": {"type": "audio/pcma"},
}
_BETA_NAMES = {
    "input_audio_format": "format",
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
_COPIED = frozenset({"include", "id", "object", "expires_at", "client_secret", "modalities"})
_OBJECT = "realtime.transcription_session"
# Keys that are sent as null; other keys without a value are omitted.
_NULLABLE = frozenset({"transcription", "noise_reduction", "turn_detection", "include", "language"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of a session, and when it expires, in Unix seconds."""

    id: str
    expires_at: int


def ga(config: Config, identity: Identity) -> dict[str, Any]:
    """The session of the GA protocol."""
    return {
        "type": "transcription",
        "object": _OBJECT,
        "id": identity.id,
        "expires_at": identity.expires_at,
        "audio": {"input": _input(config)},
        "include": config.include,
    }


def beta(config: Config, identity: Identity, secret: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The session of the beta protocol; `secret`: the key that was issued with it."""
    fields = _input(config)
    kind = fields["format"]["type"]
    return {
        "id": identity.id,
        "object": _OBJECT,
        "expires_at": identity.expires_at,
        "modalities": ["audio", "text"],
        "input_audio_format": next(name for name, each in _FORMATS.items() if each["type"] == kind),
        "input_audio_transcription": fields["transcription"],
        "turn_detection": fields["turn_detection"],
        "input_audio_noise_reduction": fields["noise_reduction"],
        "include": config.include,
        "client_secret": secret,
    }


def is_flat(session: Mapping[str, Any]) -> bool:
    """True if a session has a key that only the beta protocol has, and none of the present one."""
    return "audio" not in session and not _BETA_NAMES.keys().isdisjoint(session)


def heard(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flat session without what concerns its answers: voice, instructions, tools and so on."""
    return {name: value for name, value in flat.items() if name in _BETA_NAMES}


def from_beta(flat: Mapping[str, Any], root: str = "session") -> dict[str, Any]:
    """The nested form of a flat update. Raises `InvalidInput` for unknown keys and formats."""
    audio_input: dict[str, Any] = {}
    nested: dict[str, Any] = {"type": "transcription", "audio": {"input": audio_input}}
    for name, value in flat.items():
        path = f"{root}.{name[:100]}" if root else name[:100]
        if name in _COPIED:
            nested[name] = value
        elif name not in _BETA_NAMES:
            raise UnknownParameter(f"Unknown parameter: '{path}'.", param=path)
        elif name != "input_audio_format":
            audio_input[_BETA_NAMES[name]] = value
        elif not isinstance(value, str):
            raise InvalidType(f"Invalid type for '{path}': expected a string.", param=path)
        elif value not in _FORMATS:
            raise InvalidValue(f"Invalid value for '{path}': expected {', '.join(_FORMATS)}.", param=path)
        else:
            audio_input["format"] = _FORMATS[value]
    return nested


def with_beta_path(error: InvalidInput) -> InvalidInput:
    """An error of a nested update with the path of the flat form."""
    path, message = error.param or "", error.message
    for flat, nested in _BETA_NAMES.items():
        path = path.replace(f"audio.input.{nested}", flat)
        message = message.replace(f"audio.input.{nested}", flat)
    return type(error)(message, param=path or None)


def _input(config: Config) -> dict[str, Any]:
    return _without_nulls(config.input.model_dump())


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None or name in _NULLABLE
    }
