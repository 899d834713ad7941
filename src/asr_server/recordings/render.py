"""Renders a transcript as the bytes of an answer, by a table of formats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from asr_server.core.transcript import CoverageKind, Segment, TimeSource, Transcript
from asr_server.recordings.paragraphs import Paragraph, paragraphs
from asr_server.recordings.requests import CueLayout, RecordingRequest, ResponseFormat, Result
from asr_server.subtitle import cue_segmentation, files
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.text import languages, scripts

JSON = "application/json"
# OpenAI's clients parse anything that looks like JSON; the text formats must not.
TEXT = "text/plain; charset=utf-8"


def render(transcript: Transcript, request: RecordingRequest, cue_config: CueConfig) -> Result:
    """Render the transcript in its format, which is none of a document. `cue_config` is for cues."""
    match request.response_format:
        case ResponseFormat.JSON:
            return Result(dump(plain(transcript, request)), JSON)
        case ResponseFormat.VERBOSE_JSON:
            content = verbose(transcript, request)
            if "segment" in request.listed:
                words = "word" in request.listed
                content["paragraphs"] = [one.listed(words=words) for one in paragraphs_of(transcript)]
            if "cue" in request.listed:
                content["cues"] = _listed(cues(transcript, cue_config))
            return Result(dump(content), JSON)
        case ResponseFormat.TEXT:
            return Result(f"{text(transcript)}\n".encode(), TEXT)
        case ResponseFormat.DIARIZED_JSON:
            return Result(dump(_diarized(transcript)), JSON)
        case ResponseFormat.SRT | ResponseFormat.VTT as subtitle_format:
            return Result(render_cues(cues(transcript, cue_config), subtitle_format), TEXT)
        case document:
            raise ValueError(f"{document} is written by `TranscriptWriter`")


def cue_config(request: RecordingRequest) -> CueConfig:
    """Return the limits of cues with the caller's layout. Raises `ValueError` for impossible lines."""
    layout = request if isinstance(request, CueLayout) else CueLayout()
    return CueConfig(
        max_line_columns=layout.max_line_chars,
        max_lines=layout.max_lines,
        speaker_style=layout.speaker_style,
    )


def cues(transcript: Transcript, config: CueConfig) -> list[Cue]:
    """The words of all segments, in order, as cues. A segment without words has no cue."""
    passages = [Passage(segment.text, segment.words, segment.speaker or "") for segment in transcript.segments]
    return cue_segmentation.cues(passages, config, transcript.duration_ms)


def paragraphs_of(transcript: Transcript) -> list[Paragraph]:
    """Return the paragraphs of the transcript. A text of two hours takes 0.1 s."""
    return paragraphs(transcript.segments, languages.code(transcript.language))


def time_source(segments: Iterable[Segment]) -> str:
    """Return where the times of the words come from: "aligned", "estimated", or "mixed"; "estimated" for no words."""
    sources = {word.source for segment in segments for word in segment.words}
    return "mixed" if len(sources) > 1 else next(iter(sources), TimeSource.ESTIMATED).value


def render_cues(cues: Sequence[Cue], response_format: ResponseFormat) -> bytes:
    """Return the cues as an SRT or VTT file."""
    write = files.render_vtt if response_format is ResponseFormat.VTT else files.render_srt
    return write(cues).encode()


def text(transcript: Transcript) -> str:
    """Return the text; with speakers, a line for each of their segments."""
    if not any(segment.speaker for segment in transcript.segments):
        return transcript.text
    return scripts.dialogue((segment.speaker or "", segment.text) for segment in transcript.segments)


def plain(transcript: Transcript, request: RecordingRequest) -> dict[str, Any]:
    """Return the content of json."""
    content: dict[str, Any] = {
        "text": transcript.text,
        "language": transcript.language or "auto",
        "language_code": languages.code(transcript.language),
        "languages": language_codes(transcript),
        "usage": usage(transcript),
    }
    content |= {"logprobs": logprobs(transcript.segments)} if "logprobs" in request.listed else {}
    return content | ({"words": [word.listed() for word in transcript.words]} if "word" in request.listed else {})


def language_codes(transcript: Transcript) -> list[dict[str, str]]:
    """Return OpenAI's list for its newer models: the language by its code, or nothing if none was found."""
    code = languages.code(transcript.language)
    return [{"code": code}] if code else []


def logprobs(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """Return OpenAI's list of the tokens that wrote the text; a part of a character is shown as U+FFFD."""
    return [
        {"token": t.written.decode(errors="replace"), "logprob": t.logprob, "bytes": list(t.written)}
        for segment in segments
        for t in segment.spoken
    ]


def token_usage(transcript: Transcript) -> dict[str, Any]:
    """Return the number of tokens that the model read and wrote for the recording."""
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


def verbose(transcript: Transcript, request: RecordingRequest) -> dict[str, Any]:
    """Return the content of verbose_json."""
    content: dict[str, Any] = {
        "task": "transcribe",
        # Whisper's habit, which clients expect here: the English name in lower case, not the code.
        "language": transcript.language.lower() or "auto",
        "language_code": languages.code(transcript.language),
        "languages": language_codes(transcript),
        "duration": transcript.duration_ms / 1000,
        "coverage": coverage(transcript),
        "text": transcript.text,
    }
    if "segment" in request.listed:
        several = len({segment.language for segment in transcript.segments if segment.language}) > 1
        content["segments"] = [
            _segment(i, segment) | ({"language": segment.language.lower()} if several and segment.language else {})
            for i, segment in enumerate(transcript.segments)
        ]
    if "word" in request.listed:
        content["words"] = [word.listed() for word in transcript.words]
    masked = [
        {"kind": word.masked, "segment": number, "start": word.start_ms / 1000, "end": word.end_ms / 1000}
        for number, segment in enumerate(transcript.segments)
        for word in segment.words
        if word.masked
    ]
    if masked:
        content["masked"] = masked
    if transcript.warnings:
        content["warnings"] = list(transcript.warnings)
    return content | {"usage": usage(transcript)}


def coverage(transcript: Transcript) -> dict[str, Any]:
    """Return the seconds of each kind of part, which add up to the duration, and the parts."""
    seconds = {kind.value: transcript.covered_ms(kind) / 1000 for kind in CoverageKind}
    return seconds | {"parts": [part.listed() for part in transcript.coverage]}


def _listed(cues: Iterable[Cue]) -> list[dict[str, Any]]:
    """Return the cues as SRT and VTT show them, with the line breaks."""
    return [
        {"start": cue.start_ms / 1000, "end": cue.end_ms / 1000, "text": "\n".join(cue.lines)}
        | ({"speaker": cue.speaker} if cue.speaker else {})
        for cue in cues
    ]


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    known = {"repaired": segment.repaired, "speaker": segment.speaker}
    return {
        "id": number,
        "seek": segment.start_ms // 10,  # in frames of 10 ms
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        # The tokens of what was masked would tell it.
        "tokens": [] if any(word.masked for word in segment.words) else list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.mean_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
        "complete": segment.complete,
    } | {name: value for name, value in known.items() if value is not None}


def _diarized(transcript: Transcript) -> dict[str, Any]:
    """Return the content of diarized_json: OpenAI's fields and no others."""
    return {
        "task": "transcribe",
        "duration": transcript.duration_ms / 1000,
        "text": transcript.text,
        "segments": [diarized_segment(i, segment) for i, segment in enumerate(transcript.segments)],
        "usage": usage(transcript),
    }


def diarized_segment(number: int, segment: Segment) -> dict[str, Any]:
    """Return a segment of diarized_json, which is also an event of its stream."""
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number}",
        "start": segment.start_ms / 1000,
        "end": segment.end_ms / 1000,
        "text": segment.text,
        "speaker": segment.speaker,
    }


def usage(transcript: Transcript) -> dict[str, Any]:
    """Return the seconds of audio, rounded up: OpenAI's reference has 9 for a recording of 8.47 s."""
    return {"type": "duration", "seconds": math.ceil(transcript.duration_ms / 1000)}


def dump(content: dict[str, Any]) -> bytes:
    """Return JSON with the characters of the text, not escaped."""
    return json.dumps(content, ensure_ascii=False).encode()
