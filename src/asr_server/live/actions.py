"""The query and the actions that a client of `WS /ws/transcribe` may send."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from asr_server.audio import g711
from asr_server.core.errors import InvalidInput
from asr_server.net import websocket_io
from asr_server.recordings.requests import MAX_TEXT_CHARS

_MAX_TEXT_BYTES = 256 * 1024


def _from_floats(data: bytes) -> bytes:
    """Clip to [-1, 1]. NaN becomes silence."""
    samples = np.nan_to_num(np.frombuffer(data, "<f4"), nan=0.0).clip(-1.0, 1.0)
    scaled = (samples * np.float32(32_768.0)).round().clip(-32_768, 32_767)
    pcm: bytes = scaled.astype("<i2").tobytes()
    return pcm


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding of the client's audio. Sessions get 16-bit PCM only."""

    name: str = "pcm_s16le"  # in the first message
    sample_bytes: int = 2
    decode: Callable[[bytes], bytes] | None = None

    def pcm(self, data: bytes) -> bytes:
        """Return 16-bit PCM. Raises `invalid_value` for part of a sample: the rest would become noise."""
        if self.decode is None:
            return data
        if len(data) % self.sample_bytes:
            raise InvalidInput(
                f"A frame of {self.name} has {self.sample_bytes} bytes for each sample.", param="encoding"
            )
        return self.decode(data)


ENCODINGS = {
    "pcmu": Encoding("pcmu", 1, functools.partial(g711.decode, law=g711.Companding.MU)),
    "pcma": Encoding("pcma", 1, functools.partial(g711.decode, law=g711.Companding.A)),
    "pcm_f32le": Encoding("pcm_f32le", 4, _from_floats),
    "pcm_s16le": Encoding(),
}
ENCODINGS |= {"mulaw": ENCODINGS["pcmu"], "alaw": ENCODINGS["pcma"], "linear16": ENCODINGS["pcm_s16le"]}


class _Endpointing(BaseModel):
    """The end of utterances: at a pause or a flush, or only at a flush (`manual`). `use_server_vad` is an older name.

    A pause counts by the speech before it (`semantic`) or by its length only (`pause`). `auto` leaves that to the
    server.
    """

    endpointing: Literal["auto", "pause", "semantic", "manual"] | None = None
    use_server_vad: bool | None = None

    @property
    def manual(self) -> bool | None:
        """True if only a flush ends an utterance, None if the client does not say."""
        if self.endpointing is not None:
            return self.endpointing == "manual"
        return None if self.use_server_vad is None else not self.use_server_vad

    @property
    def semantic(self) -> bool | None:
        return {"semantic": True, "pause": False}.get(self.endpointing or "")


class Query(_Endpointing):
    """The query of the URL. Unknown parameters are ignored; proxies add their own."""

    sample_rate: Literal["8000", "16000", "24000", "44100", "48000"] = "16000"
    encoding: Literal["pcm_s16le", "linear16", "pcmu", "mulaw", "pcma", "alaw", "pcm_f32le", "opus"] = "pcm_s16le"
    language: str = ""
    hotwords: str = Field("", max_length=MAX_TEXT_CHARS)
    words: Literal["none", "accurate", "fast"] = "none"
    speakers: bool = False
    model: str = Field("", max_length=200)
    session_id: str = Field("", max_length=200)
    received: int = Field(0, ge=0)
    # The audio begins after the last final of a lost session: in a pause, or in the middle of speech.
    reopened: Literal["pause", "speech"] | None = None
    turn_events: bool = False

    @property
    def decoder(self) -> Encoding:
        return ENCODINGS.get(self.encoding, ENCODINGS["pcm_s16le"])  # Opus is decoded before


class ClientAction(_Endpointing):
    """An action that a client asks for in a text frame."""

    model_config = ConfigDict(strict=True)

    action: Literal["flush", "reset", "config", "ping", "settled"]
    language: str | None = None
    hotwords: list[str] | str | None = None

    @property
    def words(self) -> str | None:
        return ", ".join(self.hotwords) if isinstance(self.hotwords, list) else self.hotwords


def parse_query(values: Mapping[str, str]) -> Query:
    """Check the query. Raises `invalid_value` with the parameter at fault."""
    try:
        return Query.model_validate({name: value for name, value in values.items() if value != ""})
    except ValidationError as error:
        raise _invalid(error) from None


def parse_action(text: str) -> ClientAction:
    """Read a text frame. Raises `malformed_body` if it is not a JSON object, `invalid_value` for a wrong field."""
    if len(text) > _MAX_TEXT_BYTES:
        raise InvalidInput("The message is too long; audio belongs into binary frames.", code="malformed_body")
    try:
        values = websocket_io.parse_json(text)
        json.dumps(values, ensure_ascii=False).encode()  # fails for unpaired surrogates, which no model can read
    except (ValueError, RecursionError):
        raise InvalidInput(
            "The message is not valid JSON in UTF-8, or has too many values.", code="malformed_body"
        ) from None
    if not isinstance(values, dict):
        raise InvalidInput("The message must be a JSON object with an 'action'.", code="malformed_body")
    try:
        action = ClientAction.model_validate(values)
    except ValidationError as error:
        raise _invalid(error) from None
    if len(action.words or "") > MAX_TEXT_CHARS:
        raise InvalidInput(f"The hotwords are longer than {MAX_TEXT_CHARS} characters.", param="hotwords")
    return action


def _invalid(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    param = str(first["loc"][0]) if first["loc"] else None
    return InvalidInput(f"Invalid value for '{param}': {first['msg']}.", param=param)
