"""The server reads from a form the request that the client has written into it."""

from dataclasses import fields

import httpx
import pytest
from starlette.requests import Request as HttpRequest

from asr_server.client.files import form
from asr_server.net import body
from asr_server.recordings import forms as server_forms
from asr_server.recordings.requests import (
    ChannelMode,
    ChunkingStrategy,
    PersonalData,
    Profanity,
    ResponseFormat,
    SubtitleRequest,
    TextFormat,
    TranscriptionRequest,
    TranslationRequest,
    VoiceDetection,
)
from asr_server.subtitle.cues import SpeakerStyle

_PARSERS = {
    TranscriptionRequest: server_forms.transcription_request,
    SubtitleRequest: server_forms.subtitle_request,
    TranslationRequest: server_forms.translation_request,
}
_TEXTS = ("Oder, Neiße", "[x", '"q"', "a\\n & b=c", "北京 \u2028🎵")
_SPEAKERS = {"speakers": True, "return_timestamps": True, "response_format": ResponseFormat.VERBOSE_JSON}
# Options of any kind of request. Each kind takes those that it has.
_OPTIONS = {
    "defaults": {},
    "texts": {
        "model": "Qwen/Qwen3-ASR-0.6B",
        "prompt": "\t".join(_TEXTS),
        "hotwords": _TEXTS,
        "glossary": dict(zip(_TEXTS, reversed(_TEXTS), strict=True)),
        "language": "German",
        "source_language": "Chinese",
        "text_format": TextFormat.SPOKEN,
        "profanity": Profanity.MASK,
        "redact": tuple(PersonalData),
        "response_format": ResponseFormat.VERBOSE_JSON,
        "timestamp_granularities": ("word", "cue"),
        "bilingual": True,
        "source_on_failure": True,
        "format": "vtt",
        "max_line_chars": 200,
        "max_lines": 4,
    },
    "numbers": {
        "languages": ("English", "German"),
        "temperature": 1 / 3,
        "chunking_strategy": ChunkingStrategy("server_vad", 0.05, 0, 5_000),
        "vad": VoiceDetection.ADVISE,
        "strict": True,
        "mode": "fast",
        "start": 1e6 / 3,
        "include": ("logprobs",),
        "stream": True,
    },
    "known speakers": {
        **_SPEAKERS,
        "min_speakers": 2,
        "max_speakers": 40,
        "known_speaker_names": _TEXTS[:3],
        "known_speaker_references": (b"RIFF", bytes(range(256)), b"\r\n--b"),
        "speaker_style": SpeakerStyle.NONE,
    },
    "a number of speakers": {**_SPEAKERS, "num_speakers": 2},
    "channels": {**_SPEAKERS, "channel_mode": ChannelMode.SPLIT},
}


@pytest.mark.parametrize("kind", _PARSERS)
@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
async def test_the_server_parses_the_same_request(kind, options):
    """A server would ignore a field that it does not know, and to some an empty one is a value."""
    own = {one.name for one in fields(kind)}
    assert own - {"task", "keywords"} <= set().union(*_OPTIONS.values())
    request = kind(**{name: value for name, value in options.items() if name in own})
    written = form(request)
    sent = httpx.Request("POST", "http://server/", data=written, files={"file": ("a.wav", b"RIFF")})

    async def receive():
        return {"type": "http.request", "body": sent.read()}

    headers = [(name.lower(), value) for name, value in sent.headers.raw]
    scope = {"type": "http", "method": "POST", "headers": headers, "query_string": b""}
    received = await body.read_form(HttpRequest(scope, receive), 2**20)
    assert _PARSERS[kind](received) == request.checked()
    assert all(written.values())
    await received.close()
