"""The server reads from a form the request that the client has written into it."""

import asyncio
import subprocess
import sys
from dataclasses import fields

import httpx
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from starlette.requests import Request as HttpRequest

from asr_server.client.files import form
from asr_server.core.errors import InvalidInput
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
from asr_server.text import languages

# The server strips all texts, and a form ends its lines with CR LF.
_TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0"), max_size=30).map(str.strip)
_TERMS = _TEXTS.filter(bool)
_NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=64).map(str.strip).filter(bool)
_LANGUAGES = st.sampled_from(["", *languages.model_languages()])
_STRATEGIES = st.builds(
    ChunkingStrategy,
    st.sampled_from(["auto", "server_vad"]),
    threshold=st.floats(0.05, 1),
    prefix_padding_ms=st.integers(0, 2_000),
    silence_duration_ms=st.integers(32, 5_000),
)
_VALUES = {
    "model": st.sampled_from(["whisper-1", "demo", "Qwen/Qwen3-ASR-0.6B"]),
    "prompt": _TEXTS,
    "hotwords": st.lists(_TERMS, max_size=4).map(tuple),
    "language": _LANGUAGES,
    "languages": st.permutations(["English", "German", "Chinese"]).map(lambda names: (*names[:2],)),
    "temperature": st.floats(0, 1, allow_subnormal=False),
    "chunking_strategy": _STRATEGIES.map(lambda chosen: chosen if chosen.type != "auto" else ChunkingStrategy()),
    "vad": st.sampled_from(VoiceDetection),
    "strict": st.booleans(),
    "text_format": st.sampled_from(TextFormat),
    "profanity": st.sampled_from(Profanity),
    "redact": st.lists(st.sampled_from(PersonalData), unique=True).map(tuple),
    "mode": st.sampled_from(["accurate", "fast"]),
    "start": st.floats(0, 1e6, allow_subnormal=False),
    "response_format": st.sampled_from(ResponseFormat),
    "timestamp_granularities": st.lists(st.sampled_from(["segment", "word", "cue"]), unique=True).map(tuple),
    "include": st.sampled_from([(), ("logprobs",)]),
    "stream": st.booleans(),
    "return_timestamps": st.booleans(),
    "format": st.sampled_from(["srt", "vtt"]),
    "max_line_chars": st.integers(2, 200),
    "max_lines": st.integers(1, 4),
    "source_language": _LANGUAGES,
    "glossary": st.dictionaries(_TERMS, _TERMS, max_size=3),
    "bilingual": st.booleans(),
    "source_on_failure": st.booleans(),
}
_COUNTS = st.tuples(st.integers(1, 40), st.none() | st.integers(1, 40)).map(
    lambda pair: pair if pair[1] is None else tuple(sorted(pair))
)
# The speakers of a request; with channel_mode=split there is nothing more to say.
_SPEAKERS = st.builds(
    lambda count, known: {
        "min_speakers": count[0],
        "max_speakers": count[1],
        "known_speaker_names": tuple(known),
        "known_speaker_references": tuple(known.values()),
    },
    _COUNTS,
    st.dictionaries(_NAMES, st.binary(min_size=1), max_size=4),
) | st.just({"channel_mode": ChannelMode.SPLIT})
_PARSERS = {
    TranscriptionRequest: server_forms.transcription_request,
    SubtitleRequest: server_forms.subtitle_request,
    TranslationRequest: server_forms.translation_request,
}


@st.composite
def _requests(draw):
    """A request of any kind with some options, which do not contradict each other."""
    kind = draw(st.sampled_from(list(_PARSERS)))
    own = {one.name for one in fields(kind)}
    stated = draw(st.sets(st.sampled_from(sorted(own & _VALUES.keys())), max_size=8))
    options = {name: draw(_VALUES[name]) for name in sorted(stated)}
    if kind is TranslationRequest:
        options["language"] = draw(st.sampled_from(["en", "de", "pt-BR", "zh-Hant"]))
    if draw(st.booleans()):
        options |= {"speakers": True, **draw(_SPEAKERS)}
        options |= {"speaker_style": draw(st.sampled_from(SpeakerStyle))} if "speaker_style" in own else {}
    try:
        kind(**options).checked()
    except InvalidInput:
        reject()
    return kind(**options)


async def _parsed(values, parse):
    """The request that the server parses from the bytes that httpx sends."""
    sent = httpx.Request("POST", "http://server/", data=values, files={"file": ("a.wav", b"RIFF")})

    async def receive():
        return {"type": "http.request", "body": sent.read()}

    headers = [(name.lower(), value) for name, value in sent.headers.raw]
    scope = {"type": "http", "method": "POST", "headers": headers, "query_string": b""}
    http_request = HttpRequest(scope, receive)
    received = await body.read_form(http_request, 2**20)
    try:
        return parse(received)
    finally:
        await received.close()


@settings(deadline=None)
@given(_requests())
def test_the_server_parses_the_same_request(request):
    """The request goes over the bytes of a multipart body; names and recordings of speakers are what they were. The
    server would ignore a field that it does not know, and to some servers an empty one is a value."""
    written = form(request)
    assert asyncio.run(_parsed(written, _PARSERS[type(request)])) == request.checked()
    assert all(written.values())


def test_the_client_is_light_to_import():
    """A program that only calls a server loads no numerical or server library."""
    heavy = ("numpy", "torch", "fastapi", "starlette", "pydantic", "uvicorn", "av", "onnxruntime", "babel")
    code = (
        "import sys, asr_server.client.files, asr_server.client.jobs, asr_server.client.live\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
