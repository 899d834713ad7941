"""`/v1/audio/speech`: texts to audio, as files, as events and as samples; the lists of voices."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import InvalidInput
from asr_server.features.speech_output.encoding.formats import STREAMED_FORMATS, SpeechFormat
from asr_server.features.speech_output.engines.protocol import SpeechTraits, Voice, VoiceSample
from asr_server.features.speech_output.requests import CLONE_FIELDS, CloneRequest, SpeechRequest, clone_schema
from asr_server.features.speech_output.script import SpeechScript
from asr_server.features.speech_output.synthesis import (
    AudioChunk,
    SentenceBegun,
    SpeechDone,
    SpeechEvent,
    SpeechProcessor,
)
from asr_server.features.speech_output.voice_sample import voice_sample
from asr_server.net import body, event_stream
from asr_server.net.body import while_connected
from asr_server.net.errors import ErrorBody, content
from asr_server.processes.caller_work import in_thread
from asr_server.services import CallerDep, Services, ServicesDep


class VoiceBody(BaseModel):
    """A voice that speaks."""

    id: str
    name: str = Field(description="The same as `id`, where other servers have it.")
    object: Literal["voice"] = "voice"
    description: str
    languages: list[str]
    alias_of: str | None = Field(None, description="The engine's voice that one of OpenAI's names stands for.")
    also_alias_of: list[str] = Field([], description="Voices of further engines that speak what this one does not.")
    licence: str | None = Field(None, description="Of what the voice was made from, as its maker says.")
    model_card: str | None = Field(None, description="What the voice's maker says about it.")


class VoiceListBody(BaseModel):
    """All voices that speak."""

    object: Literal["list"] = "list"
    data: list[VoiceBody]
    voices: list[VoiceBody] = Field(description="The same list, where Open WebUI and other clients look for it.")


router = APIRouter(prefix="/v1/audio", tags=["speech"])

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 501, 503, 504)
}
_AUDIO: dict[int | str, dict[str, Any]] = {
    200: content(dict.fromkeys((*(one.media_type for one in STREAMED_FORMATS), "text/event-stream"), ""))
}
_SAMPLES: dict[int | str, dict[str, Any]] = {200: content({"audio/pcm": ""})}
_SENTENCES: dict[int | str, dict[str, Any]] = {200: content({"text/event-stream": ""})}
# About 5 ms of work.
_SHORT_TEXT_CHARS = 1_000
# JSON may write a character in six bytes, and outside the basic plane in twelve. The rest is for the other fields.
_BYTES_PER_CHAR, _OTHER_BYTES = 12, 128 * 1024
# 30 s of two channels at 96 kHz in 32 bits are 22 MiB.
_MAX_CLONE_BYTES = 32 * 2**20
_SCHEMA = body.json_of(SpeechRequest)
_PCM_HEADERS = {
    "X-PCM-Sample-Rate": str(SPEECH_RATE),
    "X-PCM-Bit-Depth": "16",
    "X-PCM-Channels": "1",
}


@router.post("/speech", response_class=Response, responses=_AUDIO | _ERRORS, openapi_extra=_SCHEMA)
async def create_speech(request: Request, services: ServicesDep) -> Response:
    """Speak a text. The audio is sent while it is made; `stream_format=sse` sends it in events."""
    return await _response(request, services, await _received(request, services))


@router.post("/speech/stream", response_class=Response, responses=_SENTENCES | _ERRORS, openapi_extra=_SCHEMA)
async def stream_speech(request: Request, services: ServicesDep) -> Response:
    """Speak a text in events of one sentence each, with its text and its samples (16 bits, mono, 24 kHz) in base64.
    `data: [DONE]` is the last."""
    return await _response(request, services, await _samples(request, services), to_frames=SentenceFrames())


@router.post("/speech/stream/pcm", response_class=Response, responses=_SAMPLES | _ERRORS, openapi_extra=_SCHEMA)
async def stream_samples(request: Request, services: ServicesDep) -> Response:
    """Speak a text as samples of 16 bits, mono, 24 kHz, without a header."""
    return await _response(request, services, await _samples(request, services))


@router.post("/speech/clone", response_class=Response, responses=_AUDIO | _ERRORS, openapi_extra=clone_schema())
async def speak_as(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Speak a text in the voice of a recording, which is not kept."""
    services.of(SpeechProcessor).check(imitates=True)
    services.of(SpeechProcessor).admission.check()
    form = await body.read_form(request, min(services.settings.max_upload_bytes, _MAX_CLONE_BYTES))
    try:
        wanted = body.validated(CloneRequest, {"input": "", **body.scalars(form, CLONE_FIELDS)})
        _check(wanted, services)
        file = body.upload(form, "file")
        if file is None:
            raise InvalidInput(
                "The form has no file part named 'file'.", code="missing_required_parameter", param="file"
            )
        work = voice_sample(
            services.decoder, file.file, wanted.ref_text, caller.share, services.settings.request_timeout
        )
        sample = await while_connected(request.receive, work)
    finally:
        await form.close()
    return await _response(request, services, wanted, sample)


@router.get("/voices", responses={501: {"model": ErrorBody}})
async def list_voices(services: ServicesDep) -> VoiceListBody:
    """List the voices that speech requests can name: OpenAI's names, and the engine's own."""
    return voice_list([client.traits for client in services.of(SpeechProcessor).engines.named])


@router.get("/speech/voices", include_in_schema=False)
async def list_model_voices(services: ServicesDep, model_id: str = "tts-1") -> list[dict[str, str]]:
    """The voices of a model, as Speaches lists them: each name of a model that speaks has all."""
    listed = await list_voices(services)
    services.catalog.find_speech(model_id, "model_id")
    return [{"model_id": model_id, "voice_id": voice.id} for voice in listed.data]


def voice_list(engines: Sequence[SpeechTraits]) -> VoiceListBody:
    """Return OpenAI's names, then the engines' own. `engines`: in order of preference."""
    own = {voice.id: _voice_body(voice, traits) for traits in reversed(engines) for voice in traits.voices}
    ordered = [own[voice.id] for traits in engines for voice in traits.voices]
    names = sorted({name for traits in engines for name in traits.openai_voices})
    listed = [*(_alias(name, engines, own) for name in names), *ordered]
    return VoiceListBody(data=listed, voices=listed)


def _alias(name: str, engines: Sequence[SpeechTraits], own: dict[str, VoiceBody]) -> VoiceBody:
    """Return the entry of a name with the voices it stands for. Of these, the first that speaks a language is used."""
    first, *others = [own[traits.openai_voices[name]] for traits in engines if name in traits.openai_voices]
    languages = list(dict.fromkeys(code for voice in (first, *others) for code in voice.languages))
    changed = {"id": name, "name": name, "alias_of": first.id, "languages": languages}
    return first.model_copy(update=changed | {"also_alias_of": [voice.id for voice in others]})


def _voice_body(voice: Voice, traits: SpeechTraits) -> VoiceBody:
    fields = asdict(voice) | {"name": voice.id, "languages": list(voice.languages or traits.languages)}
    return VoiceBody(**fields)


async def _received(request: Request, services: Services) -> SpeechRequest:
    """Read and check the body. Raises `speech_unavailable` before reading it, and an error if the body is wrong."""
    services.of(SpeechProcessor).check()
    max_bytes = _BYTES_PER_CHAR * services.settings.max_speech_chars + _OTHER_BYTES
    wanted = body.validated(SpeechRequest, await body.read_json(request, max_bytes))
    _check(wanted, services)
    return wanted


def _check(wanted: SpeechRequest, services: Services) -> None:
    """Raise `missing_required_parameter` if there is no text, and `model_not_found` for an unknown model."""
    if not wanted.input.strip():
        raise InvalidInput("There is no text to speak.", code="missing_required_parameter", param="input")
    services.catalog.find_speech(wanted.model)


async def _samples(request: Request, services: Services) -> SpeechRequest:
    """Read and check the body, and set its format to PCM."""
    wanted = await _received(request, services)
    return wanted.model_copy(update={"response_format": SpeechFormat.PCM, "stream_format": "audio"})


async def _response(
    request: Request,
    services: Services,
    wanted: SpeechRequest,
    sample: VoiceSample | None = None,
    to_frames: Callable[[SpeechEvent], list[str]] | None = None,
) -> Response:
    """Return a response that sends the audio, or the events that `to_frames` makes, as soon as it is ready. An error
    before the first audio becomes an HTTP status."""
    speech, share = services.of(SpeechProcessor), request.state.caller.share
    if len(wanted.input) <= _SHORT_TEXT_CHARS:
        prepared = speech.prepare(wanted, share, sample)
    else:  # a long text waits for its turn, for as long as its client is connected
        prepared = await while_connected(request.receive, in_thread(speech.prepare, wanted, share, sample))
    if wanted.stream_format == "sse":
        to_frames = _openai_frames

    def frames(event: SpeechEvent) -> Sequence[str | bytes]:
        if isinstance(event, SpeechDone):
            _note(request, event)
        if to_frames is not None:
            return to_frames(event)
        return [event.data] if isinstance(event, AudioChunk) else []

    media_type = event_stream.EVENTS if to_frames is not None else prepared.how.encoding.format.media_type
    response = await event_stream.respond(request, partial(speech.speak, prepared), frames, media_type)
    response.headers.update(_headers(prepared))
    return response


def _headers(prepared: SpeechScript) -> dict[str, str]:
    headers = {"Cache-Control": "no-store"}
    if prepared.how.encoding.format is SpeechFormat.PCM:
        headers |= _PCM_HEADERS
    return headers | ({"X-Ignored": ", ".join(prepared.how.ignored)} if prepared.how.ignored else {})


def _note(request: Request, done: SpeechDone) -> None:
    """Add lengths and times to the request's log line, and nothing of the text."""
    request.state.log |= {
        "characters": done.characters,
        "sentences": done.sentences,
        "audio_s": round(done.samples / SPEECH_RATE, 3),
        "cut_short": done.cut_short,
        "first_audio_ms": round(done.first_audio_ms, 1),
    }


def _openai_frames(event: SpeechEvent) -> list[str]:
    match event:
        case AudioChunk(data=data):
            return [event_stream.frame({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})]
        case SpeechDone():
            # OpenAI counts tokens. This server counts characters of the text and frames of 80 ms instead.
            characters, frames = event.characters, -(-event.samples * 25 // (2 * SPEECH_RATE))
            usage = {"input_tokens": characters, "output_tokens": frames, "total_tokens": characters + frames}
            return [event_stream.frame({"type": "speech.audio.done", "usage": usage})]
        case _:
            return []


class SentenceFrames:
    """The events of `/speech/stream`: one for each sentence, once its audio is complete."""

    def __init__(self) -> None:
        self._begun: SentenceBegun | None = None
        self._data = bytearray()

    def __call__(self, event: SpeechEvent) -> list[str]:
        if isinstance(event, AudioChunk):
            self._data += event.data
            return []
        frames = []
        if (begun := self._begun) is not None:
            content = {
                "index": begun.index,
                "text": begun.text,
                "start": begun.start,
                "end": begun.end,
                "sample_rate": SPEECH_RATE,
                "duration": round(len(self._data) / 2 / SPEECH_RATE, 3),
                "audio": base64.b64encode(self._data).decode(),
            }
            frames.append(event_stream.frame(content))
        self._begun, self._data = (event if isinstance(event, SentenceBegun) else None), bytearray()
        return [*frames, "data: [DONE]\n\n"] if isinstance(event, SpeechDone) else frames
