"""The JSON of `WS /ws/transcribe`, both ways. Parses and renders; decides nothing. docs/websocket.md is its page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asr_server.api import errors as error_table
from asr_server.core.errors import AsrError, InvalidValue, MalformedBody
from asr_server.live.events import SAMPLE_RATE, Configured, Detection, Final, Partial, Trouble, WasReset
from asr_server.service.outbox import Outgoing
from asr_server.text import languages

_MAX_TEXT_BYTES = 256 * 1024


class Query(BaseModel):
    """The query of the URL. Unknown parameters are ignored; proxies add their own."""

    use_server_vad: bool | None = None
    sample_rate: Literal["8000", "16000", "24000", "44100", "48000"] = "16000"
    language: str = ""
    hotwords: str = Field("", max_length=10_000)
    session_id: str = Field("", max_length=200)
    received: int = Field(0, ge=0)


class Action(BaseModel):
    """What a client may ask for in a text frame."""

    model_config = ConfigDict(strict=True)

    action: Literal["flush", "reset", "config", "ping"]
    language: str | None = None
    use_server_vad: bool | None = None
    hotwords: list[str] | str | None = None

    @property
    def words(self) -> str | None:
        """The hotwords as one text; None when they were not sent."""
        return ", ".join(self.hotwords) if isinstance(self.hotwords, list) else self.hotwords


def parse_query(values: Mapping[str, str]) -> Query:
    """Raises `InvalidValue` with the parameter at fault."""
    try:
        return Query.model_validate({name: value for name, value in values.items() if value != ""})
    except ValidationError as error:
        raise _invalid(error) from None


def parse_action(text: str) -> Action:
    """Raises `MalformedBody` for what is no JSON object, `InvalidValue` for an unknown action or a wrong type."""
    if len(text) > _MAX_TEXT_BYTES:
        raise MalformedBody("The message is too long; audio belongs into binary frames.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedBody("The message is not valid JSON.") from None
    if not isinstance(values, dict):
        raise MalformedBody("The message must be a JSON object with an 'action'.")
    try:
        return Action.model_validate(values)
    except ValidationError as error:
        raise _invalid(error) from None


def render(outgoing: Outgoing) -> dict[str, Any] | None:
    """The message for the client; None for what this protocol does not tell."""
    match outgoing.message:
        case Partial() as partial:
            return _text(partial, outgoing.lag_ms, partial.committed, partial.tentative)
        case Final() as final:
            return {**_text(final, outgoing.lag_ms, final.text, ""), "ending": final.ending.value}
        case WasReset():
            return {"status": "buffer_reset"}
        case Configured(rules=rules):
            return {
                "status": "configured",
                "language": rules.language or "auto",
                "use_server_vad": rules.detection is Detection.VOICE,
            }
        case Trouble(code=code, message=message):
            wire = error_table.TABLE[code]
            return {**error_table.envelope(message, wire.type, None, code), "code": code}
        case _:
            return None


def render_error(error: AsrError) -> dict[str, Any]:
    """An error as a message."""
    return {
        **error_table.envelope(error.message, error_table.TABLE[error.code].type, error.param, error.code),
        "code": error.code,
    }


def _text(said: Partial | Final, lag_ms: int, committed: str, tentative: str) -> dict[str, Any]:
    final = isinstance(said, Final)
    return {
        "text": said.text,
        "is_partial": not final,
        "is_final": final,
        "committed": committed,
        "tentative": tentative,
        "utterance": said.utterance,
        "start": round(said.start_samples / SAMPLE_RATE, 3),
        "end": round(said.end_samples / SAMPLE_RATE, 3),
        "language": said.language,
        "language_code": languages.code(said.language),
        "lag_ms": lag_ms,
    }


def _invalid(error: ValidationError) -> InvalidValue:
    first = error.errors()[0]
    param = str(first["loc"][0]) if first["loc"] else None
    return InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param)
