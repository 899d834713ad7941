"""What the engine answers to a live session. A final on which the model loops is made again in halves, as in files."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asr_server.engine.client import EngineClient
from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.live.events import ResultKind, Transcribe, TranscribeResult
from asr_server.scheduling.job import Priority
from asr_server.service.live_session.session_stats import LiveObserver
from asr_server.service.recordings.segmenter import SpeechSpan
from asr_server.text import joining

if TYPE_CHECKING:
    from asr_server.scheduling.thread import EngineThread


@dataclass(frozen=True, slots=True)
class Engines:
    """Who makes partials and who makes finals (with one model both are the same), and who counts them."""

    fast: EngineThread
    accurate: EngineThread
    watch: LiveObserver = field(default_factory=LiveObserver)

    def of(self, kind: ResultKind) -> EngineThread:
        """The engine for this kind of answer."""
        return self.fast if kind is ResultKind.PARTIAL else self.accurate


@dataclass(frozen=True, slots=True)
class LiveInference:
    """For one session; `timeout_s` is the time limit of each job."""

    engines: Engines
    session: str
    timeout_s: float

    async def to(self, asked: Transcribe) -> TranscribeResult:
        """The answer. Raises what the engine raised; cancelling takes the work out of the queue and the batch."""
        said = await self._said(
            asked.kind,
            Utterance(
                audio=asked.audio,
                language=asked.language,
                context=asked.context,
                draft=asked.draft,
                session=f"{self.session}:{asked.utterance}",
                last=asked.kind is ResultKind.FINAL,
                prefix=asked.prefix,
            ),
        )
        ended = said.finish is Finish.END
        if asked.kind is ResultKind.FINAL and not ended:
            span = SpeechSpan(0, len(asked.audio), asked.audio, peak_probability=1.0)
            if span.divisible:
                return await self._in_halves(asked, span)
        return TranscribeResult(
            asked.ticket,
            said.text,
            said.language,
            said.ids,
            said.offsets,
            said.logprobs,
            said.pieces,
            truncated=asked.kind is ResultKind.PARTIAL and not ended,
        )

    async def _in_halves(self, asked: Transcribe, span: SpeechSpan) -> TranscribeResult:
        # Not behind the committed words: nobody knows in which half they end.
        halves = [Utterance(half.audio, asked.language, asked.context) for half in span.halves()]
        jobs = [asyncio.create_task(self._said(asked.kind, half)) for half in halves]
        try:
            first, second = await asyncio.gather(*jobs)
        finally:
            for job in jobs:  # of two, where one failed
                job.cancel()
        text = joining.join((first.text, second.text))
        return TranscribeResult(asked.ticket, text, first.language or second.language, detached=True)

    async def _said(self, kind: ResultKind, item: Utterance) -> Hypothesis:
        engine = EngineClient(self.engines.of(kind))
        deadline_s = time.monotonic() + self.timeout_s
        return (await engine.transcribe(item, priority=Priority.LIVE, deadline_s=deadline_s)).hypothesis
