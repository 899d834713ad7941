"""A recording to its transcript: decode, cut, one job per span, join. The only place that knows the whole way."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from asr_server.audio import SAMPLE_RATE
from asr_server.core.errors import DeadlineExceeded
from asr_server.core.transcript import Segment, Timings, Transcript
from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.scheduling.job import Job
from asr_server.text import joining

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.audio.decode import Decoder
    from asr_server.scheduling.admission import Admission
    from asr_server.scheduling.thread import EngineThread
    from asr_server.service.request import TranscribeOptions
    from asr_server.service.segmenter import Segmenter, SpeechSpan


@dataclass(frozen=True, slots=True)
class _Answer:
    span: SpeechSpan
    hypothesis: Hypothesis
    queue_s: float
    infer_s: float


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

    async def transcribe(self, source: BinaryIO, options: TranscribeOptions) -> Transcript:
        """The transcript of a file-like object with a real file descriptor.

        Raises the leaves of `InvalidInput` for bad audio, `Overloaded`, `DeadlineExceeded`, and `EngineError`s.
        Cancelling the task takes its jobs out of the queue and out of the batch.
        """
        deadline_s = time.monotonic() + self._timeout_s
        try:
            with self._engine.lease():
                async with asyncio.timeout(self._timeout_s):
                    return await self._run(source, options, deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"The recording was not transcribed within the server's limit of {self._timeout_s:g} s."
            ) from None

    async def _run(self, source: BinaryIO, options: TranscribeOptions, deadline_s: float) -> Transcript:
        began_s = time.monotonic()
        audio = await self._decoder.decode(source)
        duration_s = len(audio) / SAMPLE_RATE
        with self._admission.hold(duration_s):
            spans = await self._segmenter.spans(audio)
            decoded_s = time.monotonic()
            answers = await self._answers(audio, spans, options, deadline_s)
        self._admission.observe(duration_s, time.monotonic() - decoded_s)
        timings = Timings(
            decode_ms=1000 * (decoded_s - began_s),
            queue_ms=1000 * max((a.queue_s for a in answers), default=0.0),
            infer_ms=1000 * sum(a.infer_s for a in answers),
        )
        return _assemble(answers, round(1000 * duration_s), options, timings)

    async def _answers(
        self, audio: NDArray[np.float32], spans: Sequence[SpeechSpan], options: TranscribeOptions, deadline_s: float
    ) -> list[_Answer]:
        jobs = [_job(audio, span, options, deadline_s) for span in spans]
        futures = []
        try:
            futures = [asyncio.wrap_future(self._engine.submit(job)) for job in jobs]
            hypotheses = await asyncio.gather(*futures)
        finally:
            # On any way out: what has not run yet must not, and what runs leaves the batch at the next step.
            for future in futures:
                future.cancel()
        return [
            _Answer(span, hypothesis, job.started_s - job.queued_s, job.ended_s - job.started_s)
            for span, hypothesis, job in zip(spans, hypotheses, jobs, strict=True)
        ]


def _job(audio: NDArray[np.float32], span: SpeechSpan, options: TranscribeOptions, deadline_s: float) -> Job:
    utterance = Utterance(
        audio=audio[span.start : span.end],
        language=options.language,
        context=options.context,
        temperature=options.temperature,
    )
    cost_s = (span.end - span.start) / SAMPLE_RATE
    return Job(utterance, priority=options.priority, cost_s=cost_s, deadline_s=deadline_s)


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
    return Segment(
        start_ms=round(span.start * 1000 / SAMPLE_RATE),
        end_ms=round(span.end * 1000 / SAMPLE_RATE),
        text=hypothesis.text,
        language=hypothesis.language,
        tokens=hypothesis.ids,
        mean_logprob=hypothesis.mean_logprob,
        no_speech_prob=1.0 - span.peak_probability,
        temperature=options.temperature,
        complete=hypothesis.finish is Finish.END,
    )


def _main_language(segments: Sequence[Segment]) -> str:
    """The language of most of the text; "" when none was named."""
    weights: Counter[str] = Counter()
    for segment in segments:
        if segment.language:
            weights[segment.language] += len(segment.text)
    return weights.most_common(1)[0][0] if weights else ""
