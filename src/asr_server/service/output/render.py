"""A transcript to the body of an answer, by a table of formats. Not the wire: names media types, knows no HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from asr_server.core.transcript import Segment, Transcript, Word
from asr_server.service.output import subtitles
from asr_server.service.requests import ResponseFormat
from asr_server.subtitle import srt, vtt
from asr_server.subtitle.cue_config import CueConfig
from asr_server.text import languages

JSON = "application/json"
# OpenAI's clients parse anything that looks like JSON; the text formats must not.
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Body:
    """What to send, as what, and what is said beside it (names and values of headers)."""

    content: bytes
    media_type: str
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a transcript leaves. `logprobs`, with json: of each token. `segments`, with verbose_json; `words`, with both,
    where the transcript has them. `cues`: the rules of subtitles."""

    response_format: ResponseFormat = ResponseFormat.JSON
    logprobs: bool = False
    segments: bool = True
    words: bool = False
    cues: CueConfig = field(default_factory=CueConfig)


def render(transcript: Transcript, shape: Shape) -> Body:
    """The transcript in its shape."""
    media_type, write = _WRITERS[shape.response_format]
    return Body(write(transcript, shape).encode(), media_type)


def plain(transcript: Transcript, shape: Shape) -> dict[str, Any]:
    """The content of json."""
    content: dict[str, Any] = {
        "text": transcript.text,
        "language": transcript.language,
        "language_code": languages.code(transcript.language),
        "usage": usage(transcript),
    }
    content |= {"logprobs": logprobs(transcript.segments)} if shape.logprobs else {}
    return content | ({"words": words(transcript.words)} if shape.words else {})


def words(spoken: Iterable[Word]) -> list[dict[str, Any]]:
    """Every word with its punctuation and its times in seconds, as OpenAI lists them, and where the times come from."""
    return [
        {"word": w.text, "start": w.start_ms / 1000, "end": w.end_ms / 1000, "source": w.source.value} for w in spoken
    ]


def logprobs(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """OpenAI's list of the tokens that wrote the text; a token that ends inside a character shows that as U+FFFD."""
    return [
        {"token": t.written.decode(errors="replace"), "logprob": t.logprob, "bytes": list(t.written)}
        for segment in segments
        for t in segment.spoken
    ]


def token_usage(transcript: Transcript) -> dict[str, Any]:
    """Tokens that the model read and wrote for the recording."""
    text = sum(s.prompt_tokens for s in transcript.segments)
    audio = sum(s.audio_tokens for s in transcript.segments)
    out = sum(len(s.tokens) for s in transcript.segments)
    return {
        "type": "tokens",
        "input_tokens": text + audio,
        "output_tokens": out,
        "total_tokens": text + audio + out,
        "input_token_details": {"text_tokens": text, "audio_tokens": audio},
    }


def _json(transcript: Transcript, shape: Shape) -> str:
    return dump(plain(transcript, shape))


def _text(transcript: Transcript, shape: Shape) -> str:
    return f"{transcript.text}\n"


def _srt(transcript: Transcript, shape: Shape) -> str:
    return srt.render(subtitles.cues(transcript, shape.cues))


def _vtt(transcript: Transcript, shape: Shape) -> str:
    return vtt.render(subtitles.cues(transcript, shape.cues))


def _verbose_json(transcript: Transcript, shape: Shape) -> str:
    return dump(verbose(transcript, shape))


def verbose(transcript: Transcript, shape: Shape) -> dict[str, Any]:
    """The content of verbose_json."""
    code = languages.code(transcript.language)
    content: dict[str, Any] = {
        "task": "transcribe",
        # Whisper's habit, which clients expect here: the English name in lower case, not the code.
        "language": transcript.language.lower(),
        "language_code": code,
        "languages": [{"code": code}] if code else [],
        "duration": transcript.duration_ms / 1000,
        "text": transcript.text,
    }
    if shape.segments:
        content["segments"] = [_segment(i, segment) for i, segment in enumerate(transcript.segments)]
    if shape.words:
        content["words"] = words(transcript.words)
    return content | {"usage": usage(transcript)}


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": segment.start_ms // 10,  # in frames of 10 ms
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.mean_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
        "complete": segment.complete,
    }


def usage(transcript: Transcript) -> dict[str, Any]:
    """Seconds of audio, started ones counted, as OpenAI bills."""
    return {"type": "duration", "seconds": math.ceil(transcript.duration_ms / 1000)}


def dump(content: dict[str, Any]) -> str:
    """As JSON, in the characters of the text."""
    return json.dumps(content, ensure_ascii=False)


_WRITERS: dict[ResponseFormat, tuple[str, Callable[[Transcript, Shape], str]]] = {
    ResponseFormat.JSON: (JSON, _json),
    ResponseFormat.TEXT: (TEXT, _text),
    ResponseFormat.SRT: (TEXT, _srt),
    ResponseFormat.VTT: (TEXT, _vtt),
    ResponseFormat.VERBOSE_JSON: (JSON, _verbose_json),
}
