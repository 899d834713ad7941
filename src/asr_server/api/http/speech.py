"""`/v1/audio/speech`: texts to audio, as files, as events and as samples; `/v1/audio/voices`."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from asr_server.api.dependencies import Services, ServicesDep
from asr_server.api.disconnect import while_connected
from asr_server.api.http import body, sse
from asr_server.api.http.schemas import ErrorBody, VoiceBody, VoiceListBody
from asr_server.api.http.speech_fields import SpeechBody, speech_request
from asr_server.audio.encoding.formats import SpeechFormat
from asr_server.audio.encoding.wav import HEADER_BYTES, wav_file
from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import AsrError, Cancelled
from asr_server.engine.speech.protocol import SpeechTraits, Voice
from asr_server.service.speech.cache import SpokenAnswer
from asr_server.service.speech.requests import AudioChunk, SentenceBegun, SpeechDone, SpeechEvent, SpeechRequest
from asr_server.service.speech.script import SpeechScript

router = APIRouter(prefix="/v1/audio", tags=["speech"])

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 501, 503, 504)
}
# JSON may write a character in six bytes, and outside the basic plane in twelve. The rest is for the other fields.
_BYTES_PER_CHAR, _OTHER_BYTES = 12, 128 * 1024
_SCHEMA = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": SpeechBody.model_json_schema()}}}
}
_PCM_HEADERS = {
    "X-PCM-Sample-Rate": str(SPEECH_RATE),
    "X-PCM-Bit-Depth": "16",
    "X-PCM-Channels": "1",
}


@router.post("/speech", response_class=Response, responses=_ERRORS, openapi_extra=_SCHEMA)
async def create_speech(request: Request, services: ServicesDep) -> Response:
    """Speak a text. The audio is sent while it is made; `stream_format=sse` sends it in events."""
    wanted = await _received(request, services)
    if wanted.stream_format == "sse":
        return await _events(request, services, speech_request(wanted), _openai_frames)
    return await _audio_response(request, services, speech_request(wanted))


@router.post("/speech/stream", response_class=Response, responses=_ERRORS, openapi_extra=_SCHEMA)
async def stream_speech(request: Request, services: ServicesDep) -> Response:
    """Speak a text in events of one sentence each, with its text and its samples (16 bits, mono, 24 kHz) in base64.
    `data: [DONE]` is the last."""
    wanted = replace(speech_request(await _received(request, services)), format=SpeechFormat.PCM)
    return await _events(request, services, wanted, SentenceFrames())


@router.post("/speech/stream/pcm", response_class=Response, responses=_ERRORS, openapi_extra=_SCHEMA)
async def stream_samples(request: Request, services: ServicesDep) -> Response:
    """Speak a text as samples of 16 bits, mono, 24 kHz, without a header."""
    wanted = replace(speech_request(await _received(request, services)), format=SpeechFormat.PCM)
    return await _audio_response(request, services, wanted)


@router.get("/voices", responses={501: {"model": ErrorBody}})
async def list_voices(services: ServicesDep) -> VoiceListBody:
    """The voices that speech requests can name: OpenAI's names, and the engine's own."""
    traits = services.speech.engines.named.traits
    own = {voice.id: _voice_body(voice, traits) for voice in traits.voices}
    openai = [
        own[engine].model_copy(update={"id": name, "alias_of": engine})
        for name, engine in sorted(traits.openai_voices.items())
    ]
    return VoiceListBody(data=[*openai, *own.values()])


def _voice_body(voice: Voice, traits: SpeechTraits) -> VoiceBody:
    languages = list(voice.languages or traits.languages)
    return VoiceBody(id=voice.id, description=voice.description, languages=languages, alias_of=None)


async def _received(request: Request, services: Services) -> SpeechBody:
    """The body. Raises `SpeechUnavailable` before it is read."""
    assert services.speech.engines
    max_bytes = _BYTES_PER_CHAR * services.settings.max_speech_chars + _OTHER_BYTES
    return body.validated(SpeechBody, await body.read_json(request, max_bytes))


async def _events(
    request: Request, services: Services, wanted: SpeechRequest, to_frames: Callable[[SpeechEvent], list[str]]
) -> Response:
    prepared = services.speech.prepare(wanted)
    kept = services.speech.kept(prepared)
    response = await sse.respond(request, _work(services, prepared, kept), to_frames)
    response.headers.update(_headers(prepared, is_kept=kept is not None))
    return response


def _work(services: Services, prepared: SpeechScript, kept: SpokenAnswer | None) -> sse.Work[SpeechEvent]:
    async def replay(emit: Callable[[SpeechEvent], Awaitable[None]]) -> None:
        for event in (*kept.events, kept.done) if kept is not None else ():
            await emit(event)

    return partial(services.speech.speak, prepared) if kept is None else replay


async def _audio_response(request: Request, services: Services, wanted: SpeechRequest) -> Response:
    """The response that sends the audio as it is made, or that was kept. An error before the first audio becomes an
    HTTP status."""
    prepared = services.speech.prepare(wanted)
    kept = services.speech.kept(prepared)
    headers = _headers(prepared, is_kept=kept is not None)
    if kept is not None:
        _note(request, kept.done)
        return Response(_file(wanted.format, kept), media_type=wanted.format.media_type, headers=headers)
    buffer = sse.EventBuffer(_work(services, prepared, None))
    try:
        first = await while_connected(request.receive, _first_audio(buffer))
    except BaseException:
        buffer.cancel()
        raise
    return _AudioResponse(_audio(request, buffer, first), buffer, wanted.format.media_type, headers)


def _headers(prepared: SpeechScript, *, is_kept: bool) -> dict[str, str]:
    headers = {"X-Cache": "hit" if is_kept else "miss", "X-Accel-Buffering": "no", "Cache-Control": "no-store"}
    if prepared.encoding.format is SpeechFormat.PCM:
        headers |= _PCM_HEADERS
    return headers | ({"X-Ignored": ", ".join(prepared.ignored)} if prepared.ignored else {})


def _file(audio_format: SpeechFormat, kept: SpokenAnswer) -> bytes:
    """A whole file; a WAV file then says how long it is."""
    data = b"".join(event.data for event in kept.events if isinstance(event, AudioChunk))
    return wav_file(data[HEADER_BYTES:]) if audio_format is SpeechFormat.WAV else data


async def _first_audio(buffer: sse.EventBuffer[SpeechEvent]) -> bytes:
    while await buffer.wait():
        match buffer.take():
            case AudioChunk(data=data):
                return data
            case None:
                return b""
    return b""


class _AudioResponse(StreamingResponse):
    """Cancels the work when the client leaves."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        buffer: sse.EventBuffer[Any],
        media_type: str,
        headers: dict[str, str],
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._buffer = buffer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, or end when the client leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._buffer.cancel()


async def _audio(request: Request, buffer: sse.EventBuffer[SpeechEvent], first: bytes) -> AsyncGenerator[bytes, None]:
    """All bytes. An error in the middle ends the connection without the end of the body: the client sees a failure."""
    if not first:  # the answer has ended: the voice made no sound
        return
    try:
        yield first
        while await buffer.wait():
            match buffer.take():
                case AudioChunk(data=data):
                    yield data
                case SpeechDone() as done:
                    _note(request, done)
                case None:
                    return
    except AsrError as error:
        request.state.outcome = error.code
        raise
    except BaseException:
        request.state.outcome = Cancelled.code
        raise


def _note(request: Request, done: SpeechDone) -> None:
    """For the request's log line: lengths and times, none of the text."""
    request.state.log |= {
        "characters": done.characters,
        "sentences": done.sentences,
        "audio_s": round(done.samples / SPEECH_RATE, 3),
        "cached": done.cached,
        "first_audio_ms": round(done.timings.first_audio_ms, 1),
    }


def _openai_frames(event: SpeechEvent) -> list[str]:
    match event:
        case AudioChunk(data=data):
            return [sse.frame({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})]
        case SpeechDone():
            usage = _usage(event)
            return [sse.frame({"type": "speech.audio.done", "usage": usage})]
        case _:
            return []


def _usage(done: SpeechDone) -> dict[str, int]:
    """OpenAI counts tokens. Here: characters of the text, and frames of 80 ms."""
    frames = -(-done.samples * 25 // (2 * SPEECH_RATE))
    return {"input_tokens": done.characters, "output_tokens": frames, "total_tokens": done.characters + frames}


class SentenceFrames:
    """The events of `/speech/stream`: one for each sentence, once all of its audio is there."""

    def __init__(self) -> None:
        self._begun: SentenceBegun | None = None
        self._data = bytearray()

    def __call__(self, event: SpeechEvent) -> list[str]:
        match event:
            case SentenceBegun():
                frames = self._sentence()
                self._begun = event
                return frames
            case AudioChunk(data=data):
                self._data += data
                return []
            case SpeechDone():
                return [*self._sentence(), "data: [DONE]\n\n"]

    def _sentence(self) -> list[str]:
        begun, data = self._begun, bytes(self._data)
        self._begun, self._data = None, bytearray()
        if begun is None:
            return []
        content = {
            "index": begun.index,
            "text": begun.text,
            "start": begun.start,
            "end": begun.end,
            "sample_rate": SPEECH_RATE,
            "duration": round(len(data) / 2 / SPEECH_RATE, 3),
            "audio": base64.b64encode(data).decode(),
        }
        return [sse.frame(content)]
