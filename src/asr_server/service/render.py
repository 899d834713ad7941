"""A transcript to the body of an answer, by a table of formats. Not the wire: names media types, knows no HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from asr_server.core.transcript import Segment, Transcript
from asr_server.service.request import ResponseFormat
from asr_server.subtitle import srt, vtt
from asr_server.subtitle.cues import Cue
from asr_server.text import languages

JSON = "application/json"
# OpenAI's clients parse anything that looks like JSON; the text formats must not.
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Body:
    """What to send, and as what."""

    content: bytes
    media_type: str


def render(transcript: Transcript, response_format: ResponseFormat, *, with_logprobs: bool = False) -> Body:
    """The transcript in one of the formats; log-probabilities only in json."""
    if response_format is ResponseFormat.JSON and with_logprobs:
        return Body(_dump(_plain(transcript) | {"logprobs": logprobs(transcript.segments)}).encode(), JSON)
    media_type, write = _WRITERS[response_format]
    return Body(write(transcript).encode(), media_type)


def _json(transcript: Transcript) -> str:
    return _dump(_plain(transcript))


def _plain(transcript: Transcript) -> dict[str, Any]:
    return {
        "text": transcript.text,
        "language": transcript.language,
        "language_code": languages.code(transcript.language),
        "usage": usage(transcript),
    }


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


def _text(transcript: Transcript) -> str:
    return f"{transcript.text}\n"


def _srt(transcript: Transcript) -> str:
    return srt.render(_cues(transcript))


def _vtt(transcript: Transcript) -> str:
    return vtt.render(_cues(transcript))


def _verbose_json(transcript: Transcript) -> str:
    code = languages.code(transcript.language)
    return _dump(
        {
            "task": "transcribe",
            # Whisper's habit, which clients expect here: the English name in lower case, not the code.
            "language": transcript.language.lower(),
            "language_code": code,
            "languages": [{"code": code}] if code else [],
            "duration": transcript.duration_ms / 1000,
            "text": transcript.text,
            "segments": [_segment(i, segment) for i, segment in enumerate(transcript.segments)],
            "usage": usage(transcript),
        }
    )


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


def _cues(transcript: Transcript) -> list[Cue]:
    return [Cue(s.start_ms, s.end_ms, s.text) for s in transcript.segments]


def _dump(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


_WRITERS: dict[ResponseFormat, tuple[str, Callable[[Transcript], str]]] = {
    ResponseFormat.JSON: (JSON, _json),
    ResponseFormat.TEXT: (TEXT, _text),
    ResponseFormat.SRT: (TEXT, _srt),
    ResponseFormat.VTT: (TEXT, _vtt),
    ResponseFormat.VERBOSE_JSON: (JSON, _verbose_json),
}
