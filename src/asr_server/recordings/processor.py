"""Processes a request about a recording from end to end. The same for routes and jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from asr_server.core.transcript import Transcript
from asr_server.recordings.pipeline import Emit, RecordingPipeline, RunOptions, ignore
from asr_server.recordings.render import cue_config, render, time_source
from asr_server.recordings.requests import (
    OutputOptions,
    Request,
    Result,
    TranscriptionRequest,
    TranslationRequest,
)
from asr_server.subtitle.cues import CueConfig

if TYPE_CHECKING:
    from asr_server.audio.decode import Source
    from asr_server.core.settings import Settings
    from asr_server.schedule.request_clock import RequestClock


class TranscriptTranslator(Protocol):
    """Makes the answers to translation requests."""

    def check(self) -> None:
        """Raise `TranslationUnavailable` if nothing can be translated. For the time before a body is read."""

    async def answer(self, transcript: Transcript, request: TranslationRequest, limit_s: float) -> Result:
        """Return the answer within `limit_s`. Raises `TranslationUnavailable` and `TranslationFailed`."""


class RequestProcessor:
    """Transcribes a recording, then renders or translates the transcript as the request says."""

    def __init__(
        self, pipeline: RecordingPipeline, settings: Settings, clock: RequestClock, translator: TranscriptTranslator
    ) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._clock = clock
        self.translator = translator

    async def process(
        self, source: Source, request: Request, options: RunOptions | None = None, emit: Emit = ignore
    ) -> tuple[Result, Transcript]:
        """Return the answer, and the transcript that it was made of. `emit` gets the events of the transcription.

        The time limit of `options` is for all of it. Raises what the pipeline and the translator raise;
        cancelling cancels all work.
        """
        options = options or RunOptions()
        deadline_s = self._clock.now_s() + (options.timeout_s or self._settings.request_timeout)
        transcript = await self._pipeline.transcribe(source, request, options, emit)
        if isinstance(request, TranslationRequest):
            left_s = max(0.0, deadline_s - self._clock.now_s())
            return await self.translator.answer(transcript, request, left_s), transcript
        make = render if isinstance(request, TranscriptionRequest) else _subtitles
        # In a thread: the cues of two hours take a second to compute, and live sessions share the event loop.
        config = cue_config(self._settings, request.output)
        return await asyncio.to_thread(make, transcript, request.output, config), transcript


def _subtitles(transcript: Transcript, output: OutputOptions, config: CueConfig) -> Result:
    return replace(
        render(transcript, output, config),
        file_name=f"subtitles.{output.response_format.value}",
        time_source=time_source(transcript.segments),
    )
