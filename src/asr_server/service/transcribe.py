"""A recording to its transcript: decode, cut, one job per span, join. The only place that knows the whole way."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asr_server.audio import SAMPLE_RATE
from asr_server.core.errors import DeadlineExceeded, TranscriptionFailed
from asr_server.core.transcript import Segment, Timings, Token, Transcript
from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.scheduling.job import Job, Priority
from asr_server.service.feed import Feed
from asr_server.text import joining

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.audio.decode import Decoder, Source
    from asr_server.scheduling.admission import Admission
    from asr_server.scheduling.thread import EngineThread
    from asr_server.service.request import TranscribeOptions
    from asr_server.service.segmenter import Segmenter, SpeechSpan

# Recordings longer than this are bulk work.
_BULK_OVER_S = 60.0
# A span shorter than this is not cut in two: a word would be lost at the joint sooner than a loop is mended.
_MIN_SPLIT_SAMPLES = 2 * SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class Accepted:
    """The audio is decoded and its work has begun; what fails from here on fails in the middle of an answer."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class Piece:
    """New text behind all pieces before it; never taken back."""

    text: str


Item = Accepted | Piece | Segment | Transcript


@dataclass(frozen=True, slots=True)
class _Answer:
    span: SpeechSpan
    hypothesis: Hypothesis
    queue_s: float
    infer_s: float


@dataclass(frozen=True, slots=True)
class _SpanPiece:
    """New text of one span; `opens_span`: it is the span's first."""

    text: str
    opens_span: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """One recording under way. `splits`: whether a span that fails may be tried again in halves."""

    audio: NDArray[np.float32]
    options: TranscribeOptions
    priority: Priority
    deadline_s: float
    pieces: bool
    splits: bool


class Transcriber:
    """Transcribes recordings, many at once; the heavy work is in the decoder's child and on the engine thread."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        segmenter: Segmenter,
        engine: EngineThread,
        admission: Admission,
        timeout_s: float,
    ) -> None:
        self._decoder = decoder
        self._segmenter = segmenter
        self._engine = engine
        self._admission = admission
        self._timeout_s = timeout_s

    def check_room(self) -> None:
        """Raise `Overloaded` when no more work is taken: asked before a body is read."""
        self._admission.check()

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
        """The same bit by bit: `Accepted`, then for each span in the order of the recording its `Piece`s as they are
        decoded (with `pieces`) and its `Segment`, and last the `Transcript`.

        With `pieces` the transcript's text is what the pieces say, letter by letter, and a span is not tried again once
        any of it was given out. Closing the generator takes its jobs out of the queue and out of the batch.
        """
        deadline_s = time.monotonic() + self._timeout_s
        try:
            with self._engine.lease():
                async with aclosing(self._run(source, options, deadline_s, pieces)) as items:
                    async for item in items:
                        yield item
        except TimeoutError:
            raise DeadlineExceeded(
                f"The recording was not transcribed within the server's limit of {self._timeout_s:g} s."
            ) from None

    async def _run(
        self, source: Source, options: TranscribeOptions, deadline_s: float, pieces: bool
    ) -> AsyncGenerator[Item, None]:
        began_s = time.monotonic()
        # Time limits stand around single waits, never around a yield: what the caller does meanwhile is its own.
        async with asyncio.timeout(deadline_s - began_s):
            audio = await self._decoder.decode(source)
        duration_s = len(audio) / SAMPLE_RATE
        with self._admission.hold(duration_s):
            async with asyncio.timeout(deadline_s - time.monotonic()):
                spans = await self._segmenter.spans(audio)
            decoded_s = time.monotonic()
            yield Accepted(round(1000 * duration_s))
            work = _Work(audio, options, _priority(options, duration_s), deadline_s, pieces, splits=True)
            answers, text = list[_Answer](), ""
            async with aclosing(self._answers(work, spans)) as found:
                async for item in found:
                    if isinstance(item, _Answer):
                        answers.append(item)
                        yield _segment(item, options)
                    else:
                        piece = joining.joint(text, item.text) + item.text if item.opens_span else item.text
                        text += piece
                        yield Piece(piece)
        self._admission.observe(duration_s, time.monotonic() - decoded_s)
        transcript = _assemble(answers, round(1000 * duration_s), options, _timings(answers, decoded_s - began_s))
        yield replace(transcript, text=text) if pieces else transcript

    async def _answers(self, work: _Work, spans: Sequence[SpeechSpan]) -> AsyncGenerator[_SpanPiece | _Answer, None]:
        """The spans' answers in the order of the recording, each as soon as it and all before it are there."""
        feeds = [self._submit(work, span) for span in spans]
        try:
            for span, feed in zip(spans, feeds, strict=True):
                given = False
                async for text in feed.pieces(work.deadline_s):
                    yield _SpanPiece(text, opens_span=not given)
                    given = True
                answer = _Answer(span, await feed.result(), *feed.times_s())
                if work.splits and not given and answer.hypothesis.finish is not Finish.END and _splittable(span):
                    # A loop or a used-up budget: the halves are easier, and what still fails is marked, not dropped.
                    halves = self._segmenter.halves(work.audio, span)
                    async with aclosing(self._answers(replace(work, splits=False), halves)) as parts:
                        async for part in parts:
                            yield part
                else:
                    yield answer
        finally:
            # On any way out: what has not run yet must not, and what runs leaves the batch at the next step.
            for feed in feeds:
                feed.cancel()

    def _submit(self, work: _Work, span: SpeechSpan) -> Feed:
        utterance = Utterance(
            audio=work.audio[span.start : span.end],
            language=work.options.language,
            context=work.options.context,
            temperature=work.options.temperature,
            stream=work.pieces,
        )
        cost_s = (span.end - span.start) / SAMPLE_RATE
        job = Job(utterance, priority=work.priority, cost_s=cost_s, deadline_s=work.deadline_s)
        return Feed(self._engine, job)


def _timings(answers: Sequence[_Answer], decode_s: float) -> Timings:
    return Timings(
        decode_ms=1000 * decode_s,
        queue_ms=1000 * max((a.queue_s for a in answers), default=0.0),
        infer_ms=1000 * sum(a.infer_s for a in answers),
    )


def _priority(options: TranscribeOptions, duration_s: float) -> Priority:
    """Long recordings give way to short ones, whose callers wait in front of a screen."""
    if options.priority is Priority.INTERACTIVE and duration_s > _BULK_OVER_S:
        return Priority.BULK
    return options.priority


def _splittable(span: SpeechSpan) -> bool:
    return span.end - span.start >= _MIN_SPLIT_SAMPLES


def _assemble(answers: Sequence[_Answer], duration_ms: int, options: TranscribeOptions, timings: Timings) -> Transcript:
    segments = tuple(_segment(answer, options) for answer in answers if answer.hypothesis.text)
    return Transcript(
        text=joining.join(segment.text for segment in segments),
        language=_main_language(segments),
        duration_ms=duration_ms,
        segments=segments,
        timings=timings,
    )


def _segment(answer: _Answer, options: TranscribeOptions) -> Segment:
    span, hypothesis = answer.span, answer.hypothesis
    silence = hypothesis.no_speech_prob
    return Segment(
        start_ms=round(span.start * 1000 / SAMPLE_RATE),
        end_ms=round(span.end * 1000 / SAMPLE_RATE),
        text=hypothesis.text,
        language=hypothesis.language,
        tokens=hypothesis.ids,
        mean_logprob=hypothesis.mean_logprob,
        no_speech_prob=silence if silence is not None else 1.0 - span.peak_probability,
        temperature=options.temperature,
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
