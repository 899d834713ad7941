"""A recording to its transcript: decode, cut, one job per span, join. The only place that knows the whole way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asr_server.core.audio import samples_to_ms
from asr_server.core.errors import DeadlineExceeded, TranscriptionFailed
from asr_server.core.transcript import Segment, Timings, Token, Transcript
from asr_server.engine.protocol import Finish
from asr_server.service.recordings.pipeline import PipelineResources, RecordingPipeline
from asr_server.service.recordings.span import SpanContext, SpanResult
from asr_server.text import joining

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Source
    from asr_server.scheduling.admission import Admission
    from asr_server.scheduling.thread import EngineThread
    from asr_server.service.requests import TranscribeOptions


@dataclass(frozen=True, slots=True)
class TranscriptionStarted:
    """Speech was found or the end was reached, and the work has begun; what fails from here on fails in the middle of
    an answer. `claimed_s`: how long the recording says that it is, 0 if it does not say."""

    claimed_s: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text behind all pieces before it; never taken back."""

    text: str


Item = TranscriptionStarted | TextDelta | Segment | Transcript


class Transcriber:
    """Transcribes recordings, many at once; the heavy work is in the decoder's child and on the engine thread.

    A recording is decoded while it is transcribed, at most `look_ahead` spans of 30 s ahead, so its length costs no
    memory.
    """

    def __init__(
        self,
        *,
        decoder: Decoder,
        engine: EngineThread,
        admission: Admission,
        timeout_s: float,
        look_ahead: int = 16,
    ) -> None:
        self._means = PipelineResources(decoder, engine, admission, look_ahead)
        self._timeout_s = timeout_s

    def check_room(self) -> None:
        """Raise `Overloaded` when no more work is taken: asked before a body is read."""
        self._means.admission.check()

    async def transcribe(self, source: Source, options: TranscribeOptions) -> Transcript:
        """The transcript of a file-like object with a real file descriptor.

        Raises the leaves of `InvalidInput` for bad audio, `Overloaded`, `DeadlineExceeded`, and `EngineError`s.
        Cancelling the task takes its jobs out of the queue and out of the batch.
        """
        async with aclosing(self.stream(source, options, pieces=False)) as items:
            async for item in items:
                if isinstance(item, Transcript):
                    return item
        raise TranscriptionFailed("The transcription ended without a result.")

    async def stream(
        self, source: Source, options: TranscribeOptions, *, pieces: bool = True
    ) -> AsyncGenerator[Item, None]:
        """The same bit by bit: `TranscriptionStarted`, then for each span in order its `TextDelta`s as they are
        decoded (with `pieces`) and its `Segment`, and last the `Transcript`.

        With `pieces` the transcript's text is what the pieces say, letter by letter. Closing the generator takes its
        jobs out of the queue and out of the batch.
        """
        limit_s = options.timeout_s or self._timeout_s
        order = SpanContext(options, time.monotonic() + limit_s, pieces)
        try:
            with self._means.engine.lease():
                async with aclosing(self._run(source, order)) as items:
                    async for item in items:
                        yield item
        except TimeoutError:
            raise DeadlineExceeded(
                f"The recording was not transcribed within the server's limit of {limit_s:g} s."
            ) from None

    async def _run(self, source: Source, order: SpanContext) -> AsyncGenerator[Item, None]:
        began_s = time.monotonic()
        segments, text, spent = list[Segment](), "", _TimeSpent()
        async with RecordingPipeline(self._means, source, order) as works:
            work = await works.next()
            begun_s = time.monotonic()
            yield TranscriptionStarted(works.progress.claimed_s)
            while work is not None:
                if order.pieces:
                    async with aclosing(work.pieces()) as pieces:
                        async for part in pieces:
                            piece = joining.joint(text, part.text) + part.text if part.opens else part.text
                            text += piece
                            yield TextDelta(piece)
                for answer in await work.answers():
                    segment = _segment(answer)
                    segments.append(segment)
                    spent.add(answer)
                    yield segment
                work = await works.next()
            progress = works.progress
        self._means.admission.observe(progress.decoded_s, time.monotonic() - begun_s)
        timings = Timings(1000 * (begun_s - began_s), 1000 * spent.queue_s, 1000 * spent.infer_s, 1000 * spent.load_s)
        transcript = _assemble(segments, samples_to_ms(progress.decoded_samples), timings)
        yield replace(transcript, text=text) if order.pieces else transcript


@dataclass(slots=True)
class _TimeSpent:
    """Where the time of the spans went: the longest waits, and the work of all."""

    queue_s: float = 0.0
    infer_s: float = 0.0
    load_s: float = 0.0

    def add(self, answer: SpanResult) -> None:
        self.queue_s = max(self.queue_s, answer.queue_s)
        self.infer_s += answer.infer_s
        self.load_s = max(self.load_s, answer.load_s)


def _assemble(segments: Sequence[Segment], duration_ms: int, timings: Timings) -> Transcript:
    spoken = tuple(segment for segment in segments if segment.text)
    return Transcript(
        text=joining.join(segment.text for segment in spoken),
        language=_main_language(spoken),
        duration_ms=duration_ms,
        segments=spoken,
        timings=timings,
    )


def _segment(answer: SpanResult) -> Segment:
    span, hypothesis = answer.span, answer.hypothesis
    silence = hypothesis.no_speech_prob
    return Segment(
        start_ms=samples_to_ms(span.start),
        end_ms=samples_to_ms(span.end),
        text=hypothesis.text,
        language=hypothesis.language,
        tokens=hypothesis.ids,
        mean_logprob=hypothesis.mean_logprob,
        no_speech_prob=silence if silence is not None else 1.0 - span.peak_probability,
        temperature=answer.temperature,
        words=answer.words,
        complete=hypothesis.finish is Finish.END,
        spoken=tuple(
            Token(written, logprob)
            for written, logprob in zip(hypothesis.pieces, hypothesis.logprobs, strict=False)
            if written
        ),
        prompt_tokens=hypothesis.prompt_tokens,
        audio_tokens=hypothesis.audio_tokens,
    )


def _main_language(segments: Sequence[Segment]) -> str:
    """The language of most of the text; "" when none was named."""
    weights: Counter[str] = Counter()
    for segment in segments:
        if segment.language:
            weights[segment.language] += len(segment.text)
    return weights.most_common(1)[0][0] if weights else ""
