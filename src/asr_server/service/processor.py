"""What a caller asks of a recording, from end to end: a request in, a body out. The same for routes and jobs."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from asr_server.core.errors import TranscriptionFailed
from asr_server.core.transcript import Segment, Transcript
from asr_server.scheduling.job import Priority
from asr_server.service.output import subtitles
from asr_server.service.output.render import Body, Shape, render
from asr_server.service.output.render_translation import render_cues, render_transcript
from asr_server.service.recordings.transcriber import Transcriber, TranscriptionStarted
from asr_server.service.requests import TranscribeOptions
from asr_server.service.translations import TranslateOptions, Translations
from asr_server.subtitle.cues import Cue

if TYPE_CHECKING:
    from asr_server.audio.decode import Source

# Seconds of the recording that are done, and the seconds that it claims to last (0 if it does not say).
OnProgress = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """The transcript in a shape."""

    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    shape: Shape = field(default_factory=Shape)
    task: Literal["transcription"] = "transcription"


@dataclass(frozen=True, slots=True)
class SubtitleRequest:
    """A subtitle file, to be kept as one."""

    options: TranscribeOptions
    shape: Shape
    task: Literal["subtitles"] = "subtitles"


@dataclass(frozen=True, slots=True)
class TranslationRequest:
    """The transcript in another language; `bilingual`: along with the source."""

    options: TranscribeOptions
    translating: TranslateOptions
    shape: Shape
    bilingual: bool = False
    task: Literal["translation"] = "translation"


Request = TranscriptionRequest | SubtitleRequest | TranslationRequest


@dataclass(frozen=True, slots=True)
class Result:
    """The body to hand over, the transcript that it was made of, and for translations how many lines are
    none."""

    body: Body
    transcript: Transcript
    untranslated: int | None = None


class RequestProcessor:
    """Transcribes, and makes of the transcript what was asked for."""

    def __init__(self, transcriber: Transcriber, translations: Translations, timeout_s: float) -> None:
        self._transcriber = transcriber
        self._translations = translations
        self._timeout_s = timeout_s

    async def produce(self, source: Source, request: Request, on_progress: OnProgress | None = None) -> Result:
        """The product of a recording, within the time limit of one request.

        Raises what `Transcriber.transcribe` and `Translations` raise; cancelling frees all of it.
        """
        deadline_s = time.monotonic() + (request.options.timeout_s or self._timeout_s)
        transcript = await self._transcript(source, request.options, on_progress)
        # Cues of two hours take a second to find, and live sessions have a word in between.
        match request:
            case TranscriptionRequest():
                return Result(await asyncio.to_thread(render, transcript, request.shape), transcript)
            case SubtitleRequest():
                return Result(await asyncio.to_thread(_subtitles, transcript, request.shape), transcript)
            case TranslationRequest():
                return await self._translation(transcript, request, max(0.0, deadline_s - time.monotonic()))

    async def _transcript(
        self, source: Source, options: TranscribeOptions, on_progress: OnProgress | None
    ) -> Transcript:
        claimed_s = 0.0
        async with aclosing(self._transcriber.stream(source, options, pieces=False)) as items:
            async for item in items:
                if isinstance(item, Transcript):
                    return item
                if isinstance(item, TranscriptionStarted):
                    claimed_s = item.claimed_s
                elif isinstance(item, Segment) and on_progress:
                    on_progress(item.end_ms / 1000, claimed_s)
        raise TranscriptionFailed("The transcription ended without a result.")

    async def _translation(self, transcript: Transcript, request: TranslationRequest, limit_s: float) -> Result:
        wanted = replace(request.translating, limit_s=limit_s)
        if not request.shape.response_format.is_subtitles:
            text = await self._translations.transcript(transcript, wanted)
            body = await asyncio.to_thread(render_transcript, text, request.shape, bilingual=request.bilingual)
            return Result(body, transcript, text.kept)
        cues = await asyncio.to_thread(subtitles.cues, transcript, request.shape.cues)
        spoken = _languages(cues, transcript.segments)
        lines = await self._translations.cues(cues, wanted, languages=spoken)
        body = await asyncio.to_thread(render_cues, lines, request.shape, bilingual=request.bilingual)
        return Result(body, transcript, lines.kept)


def as_bulk(request: Request, timeout_s: float) -> Request:
    """The same request as bulk work with another time limit."""
    return replace(request, options=replace(request.options, priority=Priority.BULK, timeout_s=timeout_s))


def _subtitles(transcript: Transcript, shape: Shape) -> Body:
    body = render(transcript, shape)
    notes = {
        "Content-Disposition": f'attachment; filename="subtitles.{shape.response_format.value}"',
        "X-Subtitle-Timing": subtitles.timing(transcript.segments),
    }
    return replace(body, notes=notes)


def _languages(cues: Sequence[Cue], segments: Sequence[Segment]) -> list[str]:
    """The language of each cue; "" for one whose words are of segments in several."""
    spoken = [(word.start_ms, segment.language) for segment in segments for word in segment.words]
    starts = list(accumulate((start for start, _ in spoken), max))
    found = []
    for cue in cues:
        first = max(0, bisect_right(starts, cue.start_ms) - 1)
        languages = {language for _, language in spoken[first : max(first + 1, bisect_left(starts, cue.end_ms))]}
        found.append(languages.pop() if len(languages) == 1 else "")
    return found
