"""A request as the fields of the server's multipart form. `recordings/forms.py` reads the same fields."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict

from asr_server.features.alignments.requests import AlignmentRequest
from asr_server.recordings.requests import (
    ChannelMode,
    Request,
    ResponseFormat,
    SpeakerOptions,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    WordTimes,
)
from asr_server.subtitle.cues import SpeakerStyle

Form = dict[str, str | list[str]]

ROUTES = {
    "transcription": "/v1/audio/transcriptions",
    "subtitles": "/v1/audio/subtitles",
    "translation": "/v1/audio/translations",
    "alignment": "/v1/audio/alignments",
}
# The field `mode`. NONE is no choice of the caller's: it is what answers without times of words need.
MODES = {"accurate": WordTimes.ALIGNED, "fast": WordTimes.ESTIMATED}


def form(request: Request | AlignmentRequest) -> Form:
    """Return the fields, without the file. No field is empty: to some servers an empty field is a value.

    Raises `ValueError` for what no form can state: verbose_json without segments, words and cues, word times that are
    neither aligned nor estimated, and options of speakers where none are wanted.
    """
    if isinstance(request, AlignmentRequest):
        fields: Form = {
            "model": request.model,
            "language": request.language or "",
            "response_format": request.answer,
            "text": request.text,
        }
        return {name: value for name, value in fields.items() if value}
    fields = {
        "model": request.model,
        "mode": _mode(request.word_times),
        "temperature": repr(request.temperature),
        "prompt": request.prompt,
        # As a JSON array: the server splits other values at commas.
        "hotwords": json.dumps(request.hotwords) if request.hotwords else "",
        "languages": json.dumps(request.languages) if request.languages else "",
        "chunking_strategy": json.dumps({"type": "server_vad", **asdict(request.chunking)}) if request.chunking else "",
        "vad": request.vad,
        "strict": "true" if request.strict else "",
        **_text(request),
        **_speakers(request),
    }
    match request:
        case TranscriptionRequest():
            fields |= _transcription(request)
        case SubtitleRequest():
            fields |= {"language": request.language or "", "format": request.output.response_format}
            fields |= _layout(request)
        case TranslationRequest():
            fields |= _translation(request) | _layout(request)
    return {name: value for name, value in fields.items() if value}


def _mode(word_times: WordTimes) -> str:
    for mode, times in MODES.items():
        if times is word_times:
            return mode
    raise ValueError("word_times must be ALIGNED or ESTIMATED")


def _text(request: Request) -> Form:
    """Return the options that do not have their defaults: earlier servers do not know them."""
    stated = {name: getattr(request.text_options, name) for name in request.text_options.asked}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in stated.items()}


def _speakers(request: Request) -> Form:
    options = request.speakers
    if options is None:
        output = request.output
        is_plain = request.channel_mode is ChannelMode.MIX and output.speaker_style is SpeakerStyle.NAME
        if not is_plain or output.response_format is ResponseFormat.DIARIZED_JSON:
            raise ValueError("channel_mode, speaker_style and diarized_json need speakers")
        return {}
    return {
        "speakers": "true",
        "channel_mode": request.channel_mode,
        **_count(options),
        # As a JSON array: a server may split other values at commas.
        "known_speaker_names": json.dumps([speaker.name for speaker in options.known]) if options.known else "",
        "known_speaker_references": [
            f"data:audio/unknown;base64,{base64.b64encode(speaker.clip).decode()}" for speaker in options.known
        ],
    }


def _count(options: SpeakerOptions) -> Form:
    return {
        "min_speakers": str(options.at_least) if options.at_least > 1 else "",
        "max_speakers": str(options.at_most) if options.at_most is not None else "",
    }


def _transcription(request: TranscriptionRequest) -> Form:
    output = request.output
    fields: Form = {
        "language": request.language or "",
        "response_format": output.response_format,
        "include": ["logprobs"] if output.logprobs else [],
        "stream": "true" if request.stream else "",
    }
    if output.response_format is not ResponseFormat.VERBOSE_JSON:
        return fields | {"return_timestamps": "true" if output.words else ""}
    granularities = ["segment"] * output.segments + ["word"] * output.words + ["cue"] * output.cues
    if not granularities:  # an empty list means segments
        raise ValueError("verbose_json lists segments, words or cues")
    return fields | {"timestamp_granularities": granularities}


def _translation(request: TranslationRequest) -> Form:
    """`language` is the target there."""
    return {
        "language": request.target_language,
        "source_language": request.language or "",
        "glossary": json.dumps(dict(request.glossary)) if request.glossary else "",
        "response_format": request.output.response_format,
        "bilingual": str(request.bilingual).lower(),
        "source_on_failure": str(request.source_on_failure).lower(),
    }


def _layout(request: SubtitleRequest | TranslationRequest) -> Form:
    output = request.output
    return {
        "max_line_chars": str(output.max_line_chars),
        "max_lines": str(output.max_lines),
        "speaker_style": output.speaker_style if request.speakers else "",
    }
