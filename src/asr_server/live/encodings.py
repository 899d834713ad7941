"""Decodes the audio of live sessions: the routes behind this middleware get 16-bit PCM only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr_server.core.errors import InvalidInput

_PATH = "/ws/transcribe"
_PARAMETER = "encoding"
_POSITION = "received_bytes"  # in the first message


@dataclass(frozen=True, slots=True)
class _Encoding:
    name: str  # as the first message has it
    sample_bytes: int
    decoder: Callable[[], Callable[[bytes], bytes]]


def _law(name: str) -> Callable[[bytes], bytes]:
    from asr_server.audio import g711

    return partial(g711.decode, law=g711.Companding(name))


def _float32() -> Callable[[bytes], bytes]:
    import numpy as np

    def decode(data: bytes) -> bytes:
        """Clip to [-1, 1]. NaN becomes silence."""
        samples = np.nan_to_num(np.frombuffer(data, "<f4"), nan=0.0).clip(-1.0, 1.0)
        scaled = (samples * np.float32(32_768.0)).round().clip(-32_768, 32_767)
        pcm: bytes = scaled.astype("<i2").tobytes()
        return pcm

    return decode


_ENCODINGS = {
    "pcmu": _Encoding("pcmu", 1, partial(_law, "mu-law")),
    "pcma": _Encoding("pcma", 1, partial(_law, "A-law")),
    "pcm_f32le": _Encoding("pcm_f32le", 4, _float32),
}
_ENCODINGS |= {"mulaw": _ENCODINGS["pcmu"], "alaw": _ENCODINGS["pcma"]}


class LiveEncodings:
    """ASGI middleware that decodes the frames of a live session, and converts positions to bytes of the client."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on unchanged, except the frames of a live session whose query names another encoding."""
        if scope["type"] == "websocket" and scope["path"] == _PATH:
            query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            if encoding := _ENCODINGS.get(dict(query).get(_PARAMETER, "")):
                rest = urlencode([(name, value) for name, value in query if name != _PARAMETER])
                scope = {**scope, "query_string": rest.encode("latin-1")}
                receive, send = _receiving(encoding, receive), _sending(encoding, send)
        await self._app(scope, receive, send)


def _receiving(encoding: _Encoding, receive: Receive) -> Receive:
    decode = encoding.decoder()

    async def receive_pcm() -> Message:
        message = await receive()
        data = message.get("bytes")
        if not data:
            return message
        if len(data) % encoding.sample_bytes == 0:
            return {**message, "bytes": decode(data)}
        raise InvalidInput(
            f"A frame of {encoding.name} has {encoding.sample_bytes} bytes for each sample.", param=_PARAMETER
        )

    return receive_pcm


def _sending(encoding: _Encoding, send: Send) -> Send:
    async def send_positions(message: Message) -> None:
        text = message.get("text") or ""
        if f'"{_POSITION}"' in text or '"format"' in text:
            message = {**message, "text": _with_positions(encoding, text)}
        await send(message)

    return send_positions


def _with_positions(encoding: _Encoding, text: str) -> str:
    values = json.loads(text)
    if _POSITION in values:
        values[_POSITION] = values[_POSITION] * encoding.sample_bytes // 2
    if "format" in values:
        values["format"] = encoding.name
    return json.dumps(values, ensure_ascii=False)
