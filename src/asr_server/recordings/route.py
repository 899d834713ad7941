"""`POST /v1/audio/transcriptions` and `/v1/audio/subtitles`: a form in, a transcript or a subtitle file out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile

from asr_server.core.transcript import CoverageKind, RepairReason, Segment, Transcript, UnheardReason
from asr_server.net import event_stream
from asr_server.net.body import while_connected
from asr_server.net.errors import content
from asr_server.net.event_stream import Work, frame
from asr_server.recordings import forms
from asr_server.recordings.pipeline import Event, Finished, RunOptions, SegmentDone, SegmentLabelled, Started, TextDelta
from asr_server.recordings.render import coverage, diarized_segment, language_codes, logprobs, token_usage, verbose
from asr_server.recordings.requests import (
    RecordingRequest,
    ResponseFormat,
    Result,
    SubtitleRequest,
    TranscriptionRequest,
)
from asr_server.recordings.requests import Request as AnyRequest
from asr_server.services import CallerDep, Services, ServicesDep
from asr_server.text.scripts import joint


class Usage(BaseModel):
    """Seconds of audio, started ones counted."""

    type: Literal["duration"]
    seconds: int


class LogprobBody(BaseModel):
    """One token of the text."""

    token: str
    logprob: float = Field(description="Natural logarithm.")
    bytes: list[int]


class WordBody(BaseModel):
    """One word, with its punctuation, and when it was said."""

    word: str
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    source: Literal["aligned", "estimated"] = Field(description="Measured, or spread over the speech it lies in.")
    confidence: float | None = Field(
        None, description="Geometric mean of the probabilities of its tokens; absent where they are not known."
    )
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")
    bias: bool | None = Field(
        None, description="The word is of the prompt or hotwords, and without them another was written."
    )
    masked: str | None = Field(None, description="The kind of what was masked in it. Only where something was.")


class MaskedBody(BaseModel):
    """A word of the text that was masked."""

    kind: str = Field(description="`profanity`, or a kind of personal data.")
    segment: int = Field(description="The `id` of its segment.")
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")


class LanguageBody(BaseModel):
    """A language by its code."""

    code: str


class TranscriptionBody(BaseModel):
    """`response_format=json`."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "text": "turn on the kitchen lights please",
                "language": "English",
                "language_code": "en",
                "languages": [{"code": "en"}],
                "usage": {"type": "duration", "seconds": 3},
            }
        }
    )

    text: str
    language: str = Field(description="The English name of the language; for no speech the one asked for, or `auto`.")
    language_code: str = Field(description="Its ISO code; empty where the name is `auto`.")
    languages: list[LanguageBody] = Field(description="The same code, as OpenAI's newer models list it.")
    usage: Usage
    logprobs: list[LogprobBody] | None = Field(None, description="Only with `include[]=logprobs`.")
    words: list[WordBody] | None = Field(None, description="Only with `return_timestamps`.")


class SegmentBody(BaseModel):
    """One span of speech in verbose_json."""

    id: int
    seek: int = Field(description="Start in frames of 10 ms.")
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float = Field(description="Mean natural log-probability of the tokens.")
    compression_ratio: float = Field(description="UTF-8 bytes over their zlib size.")
    no_speech_prob: float = Field(
        description="Probability the model gave to no speech; with a forced language, 1 minus the detector's peak."
    )
    complete: bool = Field(
        description="False when a repetition, the token budget or a failure of the engine ended the text."
    )
    repaired: RepairReason | None = Field(
        None, description="Why a first answer was discarded, and the audio heard again. Only where that was so."
    )
    language: str | None = Field(
        None, description="English name of its language in lower case. Only where several are spoken."
    )
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")


class CueBody(BaseModel):
    """One cue, as subtitles show it."""

    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str = Field(description="Lines, separated by line breaks.")
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")


class ParagraphBody(BaseModel):
    """Whole sentences of one speaker without a pause of 2 s; a new speaker, such a pause, and the first sentence after
    600 characters or 15 s begin a paragraph."""

    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")
    first_segment: int = Field(description="The `id` of the segment that it begins in.")
    last_segment: int = Field(description="The `id` of the segment that it ends in.")
    first_word: int | None = Field(None, description="Its first word in `words`, from 0 on. Where these are listed.")
    last_word: int | None = Field(None, description="Its last word.")


class CoveragePartBody(BaseModel):
    """A stretch of the recording."""

    kind: CoverageKind
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    reason: UnheardReason | None = Field(None, description="Of what is unheard.")
    confidence: float | None = Field(None, description="Of silence: 1 minus the mean probability of speech.")


class CoverageBody(BaseModel):
    """The seconds of each outcome, which add up to the duration, and the parts of the recording."""

    words: float = Field(description="Seconds with words.")
    silence: float = Field(description="Quiet seconds.")
    sound: float = Field(description="Seconds of music or noise: not quiet, and without words.")
    unheard: float = Field(description="Seconds in which words may be missing.")
    parts: list[CoveragePartBody] = Field(description="In order, without gaps.")


class VerboseTranscriptionBody(BaseModel):
    """`response_format=verbose_json`."""

    task: Literal["transcribe"]
    language: str = Field(description="English name of the language in lower case.")
    language_code: str
    languages: list[LanguageBody]
    duration: float = Field(description="Seconds.")
    coverage: CoverageBody
    text: str
    segments: list[SegmentBody] | None = Field(None, description="Unless only words are asked for.")
    paragraphs: list[ParagraphBody] | None = Field(None, description="Unless only words are asked for.")
    words: list[WordBody] | None = Field(None, description="Where words are asked for.")
    cues: list[CueBody] | None = Field(None, description="Where cues are asked for.")
    masked: list[MaskedBody] | None = Field(None, description="Where something was masked.")
    usage: Usage


class DiarizedSegmentBody(BaseModel):
    """The words of one speaker without another in between, in diarized_json."""

    type: Literal["transcript.text.segment"]
    id: str
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str
    speaker: str = Field(description="A letter, in the order in which the speakers begin, or a known name.")


class DiarizedTranscriptionBody(BaseModel):
    """`response_format=diarized_json`."""

    task: Literal["transcribe"]
    duration: float = Field(description="Seconds.")
    text: str
    segments: list[DiarizedSegmentBody]
    usage: Usage


router = APIRouter(tags=["audio"])


# The paths of Azure, where every deployment means the model that is loaded, and of whisper.cpp's server.
@router.post("/openai/deployments/{deployment}/audio/transcriptions", include_in_schema=False)
@router.post("/inference", include_in_schema=False)
@router.post(
    "/v1/audio/transcriptions",
    response_model=DiarizedTranscriptionBody | VerboseTranscriptionBody | TranscriptionBody,  # the richest first
    responses={
        200: {
            "description": "The transcript in the format asked for; with `stream`, server-sent events.",
            **content(
                {
                    "text/plain": "turn on the kitchen lights please\n",
                    "text/event-stream": 'data: {"type": "transcript.text.delta", "delta": "turn on"}\n\n',
                }
            ),
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(TranscriptionRequest),
)
async def create_transcription(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Transcribe a recording: WAV, FLAC, MP3, OGG, M4A, MP4, MOV, MKV, WebM, AIFF and more."""
    async with forms.received(request, services, forms.transcription_request) as (wanted, file):
        if wanted.stream:
            reports_gaps = wanted.reports_gaps
            options = RunOptions(
                deltas=True, paragraphs=reports_gaps, caller=caller.share, owner=caller.owner, reports_gaps=reports_gaps
            )
            work: Work[Event] = partial(services.pipeline.transcribe, file.file, wanted, options)
            if wanted.response_format.is_subtitles:
                work = partial(_subtitle_events, services, file, wanted, replace(options, deltas=False))
            return await _stream(request, work, OpenAiFrames(wanted))
        return await respond(request, services, wanted, file)


async def _subtitle_events(
    services: Services,
    file: UploadFile,
    wanted: TranscriptionRequest,
    options: RunOptions,
    emit: Callable[[Event], Awaitable[None]],
) -> None:
    """Emit the events of a stream that ends with a subtitle file. No deltas: cues depend on the text after them."""

    async def emit_start(event: Event) -> None:
        if isinstance(event, Started):
            await emit(event)

    result, transcript = await services.processor.process(file.file, wanted, options, emit_start)
    await emit(Finished(replace(transcript, text=result.content.decode())))


@router.post(
    "/v1/audio/transcriptions/stream",
    response_class=Response,
    responses={
        200: {
            "description": "Server-sent events: one for each segment in order, one for all text, and `done`.",
            **content({"text/event-stream": 'data: {"text": "turn on", "is_final": false, ...}\n\n'}),
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(TranscriptionRequest),
)
async def stream_transcription(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Transcribe a recording and send each segment when it is finished. The form is that of the route above."""
    async with forms.received(request, services, forms.segments_request) as (wanted, file):
        options = RunOptions(streams=True, paragraphs=True, caller=caller.share, owner=caller.owner, reports_gaps=True)
        work = partial(services.pipeline.transcribe, file.file, wanted, options)
        return await _stream(request, work, SegmentFrames(wanted))


@router.post(
    "/v1/audio/subtitles",
    response_class=Response,
    responses={
        200: {
            "description": "The file. `X-Subtitle-Timing` says where its times come from: `aligned`, `estimated` or "
            "`mixed`.",
            **content({"text/plain": "1\n00:00:00,250 --> 00:00:02,800\nTurn on the lights.\n\n"}),
        },
        **forms.ERRORS,
    },
    openapi_extra=forms.request_schema(SubtitleRequest),
)
async def create_subtitles(request: Request, services: ServicesDep) -> Response:
    """Subtitles of a recording: broken at sentences, clauses and pauses, as fast as one can read."""
    async with forms.received(request, services, forms.subtitle_request) as (wanted, file):
        return await respond(request, services, wanted, file)


async def respond(request: Request, services: Services, wanted: AnyRequest, file: UploadFile) -> Response:
    """Process the request while the client is connected. Raises `Cancelled` if it leaves before the answer."""
    caller, reports_gaps = request.state.caller, wanted.reports_gaps
    options = RunOptions(caller=caller.share, owner=caller.owner, reports_gaps=reports_gaps)
    return await answered(request, services.processor.process(file.file, wanted, options))


async def answered(request: Request, work: Coroutine[Any, Any, tuple[Result, Transcript]]) -> Response:
    """Return the response with a result and headers about its transcript. Raises what `respond` raises."""
    result, transcript = await while_connected(request.receive, work)
    timing = noted(request, transcript)
    if result.untranslated is not None:
        request.state.log["untranslated"] = result.untranslated
    duration = {"X-Audio-Duration": f"{transcript.duration_ms / 1000:.3f}"}
    return Response(result.content, media_type=result.media_type, headers=headers_of(result) | duration | timing)


def noted(request: Request, transcript: Transcript) -> dict[str, str]:
    """Add the lengths and times of a transcript, but none of its text, to the request's log line. Return the
    `Server-Timing` header with these times, in milliseconds, and the total time so far."""
    took_ms = {name.removesuffix("_ms"): value for name, value in asdict(transcript.timings).items()}
    request.state.log.update(
        audio_s=transcript.duration_ms / 1000,
        spans=len(transcript.segments),
        unheard_s=transcript.covered_ms(CoverageKind.UNHEARD) / 1000,
        **{f"{part}_ms": round(ms, 1) for part, ms in took_ms.items()},
    )
    took_ms["total"] = 1000 * (time.perf_counter() - request.state.began_s)
    return {"Server-Timing": ", ".join(f"{part};dur={ms:.1f}" for part, ms in took_ms.items())}


def headers_of(result: Result) -> dict[str, str]:
    """Return the headers that describe a result."""
    known = {
        "Content-Disposition": result.file_name and f'attachment; filename="{result.file_name}"',
        "X-Subtitle-Timing": result.time_source,
        "X-Untranslated": None if result.untranslated is None else str(result.untranslated),
        "X-Translation-Error": result.translation_error,
    }
    return {name: value for name, value in known.items() if value is not None}


# -- events of a stream ------------------------------------------------------------------------------------------------


async def _stream(request: Request, work: Work[Event], to_frames: Callable[[Event], list[str]]) -> StreamingResponse:
    """Return the response that streams the events. Note their times for the request's log line and metrics."""

    def frames_of(event: Event) -> list[str]:
        frames = to_frames(event)
        if isinstance(event, Finished):
            noted(request, event.transcript)
        elif frames and isinstance(event, TextDelta | SegmentDone) and not hasattr(request.state, "first_text_s"):
            request.state.first_text_s = time.perf_counter()
        return frames

    return await event_stream.respond(request, work, frames_of)


class OpenAiFrames:
    """Deltas as they are decoded, then `transcript.text.done` and `[DONE]`. All deltas joined are the text of `done`.
    With diarized_json, each segment is an event once its speaker is known; with verbose_json, each incomplete segment.

    Log-probabilities come with `done`: a delta is whole characters, which may be less or more than whole tokens.
    """

    def __init__(self, request: RecordingRequest) -> None:
        self._request = request
        self._segments = 0

    def __call__(self, event: Event) -> list[str]:
        match event:
            case TextDelta(text=text):
                return [frame({"type": "transcript.text.delta", "delta": text})]
            case SegmentDone(segment=segment) if self._request.reports_gaps and not segment.complete:
                times = {"start": segment.start_ms / 1000, "end": segment.end_ms / 1000}
                return [frame({"type": "transcript.text.unheard", **times, "reason": segment.cut_short})]
            case SegmentLabelled(segment=segment) if self._request.response_format is ResponseFormat.DIARIZED_JSON:
                self._segments += 1
                return [frame(diarized_segment(self._segments - 1, segment))]
            case Finished() as finished:
                return [frame(_done(finished, self._request)), "data: [DONE]\n\n"]
            case _:
                return []


def _done(finished: Finished, request: RecordingRequest) -> dict[str, Any]:
    transcript = finished.transcript
    if request.response_format is ResponseFormat.VERBOSE_JSON:
        content = verbose(transcript, request)
        if "segment" in request.listed:
            content["paragraphs"] = [one.listed(words="word" in request.listed) for one in finished.paragraphs]
        return {"type": "transcript.text.done", **content, "usage": token_usage(transcript)}
    body: dict[str, Any] = {"type": "transcript.text.done", "text": transcript.text}
    body |= {"languages": language_codes(transcript), "usage": token_usage(transcript)}
    body |= {"logprobs": logprobs(transcript.segments)} if "logprobs" in request.listed else {}
    return body | ({"words": [word.listed() for word in transcript.words]} if "word" in request.listed else {})


class SegmentFrames:
    """Frames with the length that the recording claims, if any, each segment, the whole text, and `done`.

    If speakers are requested, segments are sent twice: without speakers while the recording is transcribed, and at its
    end with speakers, each segment of one speaker.
    """

    def __init__(self, request: RecordingRequest) -> None:
        self._request = request
        self._index = 0
        self._text = ""
        self._complete = True
        self._is_labelled = False

    def __call__(self, event: Event) -> list[str]:
        match event:
            case Started(claimed_s=claimed_s) if claimed_s:
                return [frame({"duration": round(claimed_s, 3)})]
            case SegmentDone(segment=segment):
                self._complete &= segment.complete
                unlabelled = tuple(replace(word, speaker=None) for word in segment.words)
                return [frame(self._segment(replace(segment, words=unlabelled)))]
            case SegmentLabelled(segment=segment):
                if not self._is_labelled:
                    self._is_labelled, self._index, self._text = True, 0, ""
                return [frame(self._segment(segment) | {"speaker": segment.speaker})]
            case Finished(transcript=whole, paragraphs=found):
                chunk = self._chunk(whole.text, whole.language or "auto", 0, whole.duration_ms)
                # Without the numbers of segments: spans without text are chunks, too.
                listed = [one.listed(segments=False) for one in found]
                chunk |= {"is_final": True, "complete": self._complete, "coverage": coverage(whole)}
                chunk |= {"paragraphs": listed, "peaks": whole.peaks}
                return [frame(chunk), frame({"done": True})]
            case _:
                return []

    def _segment(self, segment: Segment) -> dict[str, Any]:
        text = joint(self._text, segment.text) + segment.text if segment.text else ""
        chunk = self._chunk(text, segment.language, segment.start_ms, segment.end_ms)
        chunk |= {"complete": segment.complete} | ({} if segment.complete else {"reason": segment.cut_short})
        self._text += text
        self._index += 1
        return chunk | ({"words": [word.listed() for word in segment.words]} if "word" in self._request.listed else {})

    def _chunk(self, text: str, language: str, start_ms: int, end_ms: int) -> dict[str, Any]:
        return {
            "text": text,
            "language": language,
            "is_final": False,
            "chunk_index": self._index,
            "start": start_ms / 1000,
            "end": end_ms / 1000,
        }
