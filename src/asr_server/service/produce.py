"""What a caller asks of a recording, from end to end: a request in, a body out. The same for routes and jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from asr_server.core.errors import TranscriptionFailed
from asr_server.core.transcript import Segment, Transcript
from asr_server.service.render import Body, render
from asr_server.service.request import ResponseFormat, TranscribeOptions
from asr_server.service.transcribe import Accepted, Transcriber

if TYPE_CHECKING:
    from asr_server.audio.decode import Source

# Seconds of the recording that are done, and the seconds that it claims to last (0 if it does not say).
OnProgress = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    """The transcript in one of the formats."""

    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    response_format: ResponseFormat = ResponseFormat.JSON
    logprobs: bool = False


Request = TranscriptionRequest


@dataclass(frozen=True, slots=True)
class Product:
    """The body to hand over, and the transcript that it was made of."""

    body: Body
    transcript: Transcript


class Producer:
    """Transcribes, and makes of the transcript what was asked for."""

    def __init__(self, transcriber: Transcriber) -> None:
        self._transcriber = transcriber

    async def produce(self, source: Source, request: Request, on_progress: OnProgress | None = None) -> Product:
        """The product of a recording. Raises what `Transcriber.transcribe` raises; cancelling frees all of it."""
        transcript = await self._transcript(source, request.options, on_progress)
        return Product(render(transcript, request.response_format, with_logprobs=request.logprobs), transcript)

    async def _transcript(
        self, source: Source, options: TranscribeOptions, on_progress: OnProgress | None
    ) -> Transcript:
        claimed_s = 0.0
        async with aclosing(self._transcriber.stream(source, options, pieces=False)) as items:
            async for item in items:
                if isinstance(item, Transcript):
                    return item
                if isinstance(item, Accepted):
                    claimed_s = item.claimed_s
                elif isinstance(item, Segment) and on_progress:
                    on_progress(item.end_ms / 1000, claimed_s)
        raise TranscriptionFailed("The transcription ended without a result.")


def patient(request: Request, timeout_s: float) -> Request:
    """The same request as bulk work with another time limit."""
    from asr_server.scheduling.job import Priority

    return replace(request, options=replace(request.options, priority=Priority.BULK, timeout_s=timeout_s))
