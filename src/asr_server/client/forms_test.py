"""The server reads from a form the request that the client has written into it."""

import asyncio
import subprocess
import sys
from dataclasses import replace

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st
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
from asr_server.text import languages

# The server strips all texts, and a form ends its lines with CR LF.
_TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n\0"), max_size=30).map(str.strip)
_TERMS = _TEXTS.filter(bool)
_LAYOUT = {"max_line_chars": st.integers(2, 200), "max_lines": st.integers(1, 4)}
_RECORDING = {
    "model": st.sampled_from(["whisper-1", "demo", "Qwen/Qwen3-ASR-0.6B"]),
    "prompt": _TEXTS,
    "hotwords": st.lists(_TERMS, max_size=4).map(tuple),
    "temperature": st.floats(0, 1, allow_subnormal=False),
    "chunking_strategy": st.just(ChunkingStrategy())
    | st.builds(
        ChunkingStrategy,
        st.just("server_vad"),
        threshold=st.floats(0.05, 1),
        prefix_padding_ms=st.integers(0, 2_000),
        silence_duration_ms=st.integers(32, 5_000),
    ),
    "vad": st.sampled_from(VoiceDetection),
    "strict": st.booleans(),
    "text_format": st.sampled_from(TextFormat),
    "profanity": st.sampled_from(Profanity),
    "redact": st.lists(st.sampled_from(PersonalData), unique=True).map(tuple),
    "mode": st.sampled_from(["accurate", "fast"]),
    "start": st.floats(0, 1e6, allow_subnormal=False),
}
_LANGUAGE = st.sampled_from(["", *languages.model_languages()])
_NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=64).map(str.strip).filter(bool)
_KNOWN = st.dictionaries(_NAMES, st.binary(min_size=1), max_size=4)
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
    _KNOWN,
) | st.just({"channel_mode": ChannelMode.SPLIT})
_JSON = {"return_timestamps": st.booleans(), "include": st.sampled_from([(), ("logprobs",)])}
_PARTS = st.lists(st.sampled_from(["segment", "word", "cue"]), unique=True).map(tuple)
_OTHER = st.sampled_from([ResponseFormat(name) for name in ("text", "srt", "vtt", "docx")])
_TRANSLATED = [one for one in ResponseFormat if one is not ResponseFormat.DIARIZED_JSON and not one.is_document]
_TRANSCRIPTIONS = (
    st.builds(TranscriptionRequest, **_RECORDING, language=_LANGUAGE, **_JSON)
    | st.builds(TranscriptionRequest, **{**_RECORDING, "redact": st.just(())}, **_JSON, stream=st.just(True))
    | st.builds(
        TranscriptionRequest,
        **_RECORDING,
        response_format=st.just(ResponseFormat.VERBOSE_JSON),
        timestamp_granularities=_PARTS,
    )
    | st.builds(TranscriptionRequest, **_RECORDING, response_format=_OTHER)
)
# One language of several is detected where none is forced.
_DETECTED = st.builds(
    TranscriptionRequest, languages=st.permutations(["English", "German", "Chinese"]).map(lambda names: (*names[:2],))
)
_SUBTITLES = st.builds(
    SubtitleRequest,
    **_RECORDING,
    **_LAYOUT,
    language=_LANGUAGE,
    format=st.sampled_from(["srt", "vtt"]),
)
_TRANSLATIONS = st.builds(
    TranslationRequest,
    **_RECORDING,
    **_LAYOUT,
    response_format=st.sampled_from(_TRANSLATED),
    source_language=_LANGUAGE,
    language=st.sampled_from(["en", "de", "pt-BR", "zh-Hant"]),
    glossary=st.dictionaries(_TERMS, _TERMS, max_size=3),
    bilingual=st.booleans(),
    source_on_failure=st.booleans(),
)
_PARSERS = {
    TranscriptionRequest: server_forms.transcription_request,
    SubtitleRequest: server_forms.subtitle_request,
    TranslationRequest: server_forms.translation_request,
}


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


def _check(request):
    """The server parses the same request. No field is empty."""
    written = form(request)
    assert asyncio.run(_parsed(written, _PARSERS[type(request)])) == request.checked()
    assert all(written.values())


@settings(deadline=None)
@given(_TRANSCRIPTIONS | _SUBTITLES | _TRANSLATIONS | _DETECTED)
def test_the_server_parses_the_same_request(request):
    """The request goes over the bytes of a multipart body. The server would ignore a field that it does not know, and
    to some servers an empty one is a value."""
    _check(request)


@settings(deadline=None)
@given(_TRANSCRIPTIONS | _SUBTITLES | _TRANSLATIONS, _SPEAKERS, st.sampled_from(SpeakerStyle))
def test_speakers_reach_the_server(request, speakers, style):
    """The speakers come with every format that shows them: names and recordings are what they were, byte for byte."""
    if isinstance(request, TranscriptionRequest):
        if request.response_format in (ResponseFormat.JSON, ResponseFormat.TEXT) and "word" not in request.listed:
            request = replace(request, response_format=ResponseFormat.DIARIZED_JSON, include=())
    elif isinstance(request, TranslationRequest):
        style = SpeakerStyle.NAME if style is SpeakerStyle.DASH else style
        is_json = request.response_format is ResponseFormat.JSON
        shown = ResponseFormat.TEXT if is_json else request.response_format
        request = replace(request, response_format=shown, speaker_style=style)
    else:
        request = replace(request, speaker_style=style)
    _check(replace(request, speakers=True, **speakers))


def test_the_client_is_light_to_import():
    """A program that only calls a server loads no numerical or server library."""
    heavy = ("numpy", "torch", "fastapi", "starlette", "pydantic", "uvicorn", "av", "onnxruntime", "babel")
    code = (
        "import sys, asr_server.client.files, asr_server.client.jobs, asr_server.client.live\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
