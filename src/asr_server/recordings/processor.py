"""Processes a request about a recording from end to end. The same for routes and jobs."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from asr_server.core.transcript import Segment, Transcript
from asr_server.features.translation import render_translation
from asr_server.features.translation.translations import Translations
from asr_server.recordings import subtitles
from asr_server.recordings.pipeline import Emit, RecordingPipeline, RunOptions, ignore
from asr_server.recordings.render import render
from asr_server.recordings.requests import (
    OutputOptions,
    Request,
    Result,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cues import Cue

if TYPE_CHECKING:
    from asr_server.audio.decode import Source
    from asr_server.core.settings import Settings
    from asr_server.schedule.request_clock import RequestClock


class RequestProcessor:
    """Transcribes a recording, then renders or translates the transcript as the request says."""

    def __init__(
        self, pipeline: RecordingPipeline, translations: Translations, settings: Settings, clock: RequestClock
    ) -> None:
        self._pipeline = pipeline
        self._translations = translations
        self._settings = settings
        self._clock = clock

    async def process(
        self, source: Source, request: Request, options: RunOptions | None = None, emit: Emit = ignore
    ) -> tuple[Result, Transcript]:
        """Return the answer, and the transcript that it was made of. `emit` gets the events of the transcription.

        The time limit of `options` is for all of it. Raises what `RecordingPipeline.transcribe` and `Translations`
        raise; cancelling cancels all work.
        """
        options = options or RunOptions()
        deadline_s = self._clock.now_s() + (options.timeout_s or self._settings.request_timeout)
        transcript = await self._pipeline.transcribe(source, request, options, emit)
        # In a thread: the cues of two hours take a second to compute, and live sessions share the event loop.
        match request:
            case TranscriptionRequest():
                result = await asyncio.to_thread(render, transcript, request.output, self._cue_config(request.output))
            case SubtitleRequest():
                result = await asyncio.to_thread(self._subtitles, transcript, request.output)
            case TranslationRequest():
                result = await self._translate(transcript, request, max(0.0, deadline_s - self._clock.now_s()))
        return result, transcript

    def _cue_config(self, output: OutputOptions) -> CueConfig:
        return subtitles.cue_config(self._settings, output)

    def _subtitles(self, transcript: Transcript, output: OutputOptions) -> Result:
        return replace(
            render(transcript, output, self._cue_config(output)),
            file_name=f"subtitles.{output.response_format.value}",
            time_source=subtitles.time_source(transcript.segments),
        )

    async def _translate(self, transcript: Transcript, request: TranslationRequest, limit_s: float) -> Result:
        if not request.output.response_format.is_subtitles:
            text = await self._translations.transcript(transcript, request, limit_s=limit_s)
            return await asyncio.to_thread(render_translation.render_transcript, text, request)
        config = self._cue_config(request.output)
        cues = await asyncio.to_thread(subtitles.cues, transcript, config)
        languages = _languages(cues, transcript.segments)
        lines = await self._translations.cues(cues, request, limit_s=limit_s, languages=languages)
        return await asyncio.to_thread(render_translation.render_cues, lines, request, config)


def _languages(cues: Sequence[Cue], segments: Sequence[Segment]) -> list[str]:
    """The language of each cue; "" if its words are of segments in several languages."""
    spoken = [(word.start_ms, segment.language) for segment in segments for word in segment.words]
    starts = list(accumulate((start for start, _ in spoken), max))
    found = []
    for cue in cues:
        first = max(0, bisect_right(starts, cue.start_ms) - 1)
        languages = {language for _, language in spoken[first : max(first + 1, bisect_left(starts, cue.end_ms))]}
        found.append(languages.pop() if len(languages) == 1 else "")
    return found
