"""One span of a recording to its answers: as a row of the batch, and again in an easier form when that went wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asr_server.engine.client import EngineClient, EngineStream
from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.service import word_times

if TYPE_CHECKING:
    from asr_server.core.transcript import Word
    from asr_server.scheduling.job import Priority
    from asr_server.scheduling.thread import EngineThread
    from asr_server.service.recordings.segmenter import SpeechSpan
    from asr_server.service.requests import TranscribeOptions


@dataclass(frozen=True, slots=True)
class SpanContext:
    """How the spans of one recording are worked on. `deadline_s` is on the monotonic clock; `pieces`: text is wanted
    as it is decoded."""

    options: TranscribeOptions
    deadline_s: float
    pieces: bool


@dataclass(frozen=True, slots=True)
class SpanResult:
    """What came back for a span, or for half of one. `temperature` is the one that the answer was made with."""

    span: SpeechSpan
    hypothesis: Hypothesis
    temperature: float
    queue_s: float
    infer_s: float
    load_s: float = 0.0
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanDelta:
    """New text of one span; `opens`: it is the first of its span, or of a half."""

    text: str
    opens: bool


class SpanTask:
    """Begins at once. A loop or a used-up budget is tried again, once each: greedily if it was sampled, then in halves,
    which are easier; what still fails is marked, not dropped. Text that was given out is never taken back, so a span
    is not tried again once any of it was."""

    def __init__(self, engine: EngineThread, span: SpeechSpan, order: SpanContext, priority: Priority) -> None:
        self._engine = engine
        self._span = span
        self._order = order
        self._priority = priority
        self._feed = self._submit(span, order.options.temperature)
        self._given = self._replaced = False
        self._task = asyncio.create_task(self._answers())

    @property
    def over(self) -> bool:
        """Whether nothing of it waits or runs any more, and nobody has to hear of an error."""
        return self._task.done() and not self._task.cancelled() and self._task.exception() is None

    async def begun(self) -> None:
        """Wait for the first text, or for the end."""
        await self._feed.begun.wait()

    async def pieces(self) -> AsyncGenerator[SpanDelta, None]:
        """The text as it is decoded. Raises `TimeoutError` at the deadline."""
        async for text in self._feed:
            if self._replaced:
                break
            opens, self._given = not self._given, True
            yield SpanDelta(text, opens)
        if not self._given:
            for answer in await self.answers():
                if answer.hypothesis.text:
                    yield SpanDelta(answer.hypothesis.text, opens=True)

    async def answers(self) -> list[SpanResult]:
        """One answer, or two for halves. Raises `TimeoutError` at the deadline, and what the engine raised."""
        async with asyncio.timeout(self._order.deadline_s - time.monotonic()):
            return await asyncio.shield(self._task)

    def leave(self) -> asyncio.Task[list[SpanResult]]:
        """Take the work out of the queue and out of the batch, at once; the task ends soon after."""
        self._feed.cancel()
        self._task.cancel()
        return self._task

    async def _answers(self) -> list[SpanResult]:
        answers = await self._transcribed()
        return list(await asyncio.gather(*map(self._timed, answers)))

    async def _timed(self, answer: SpanResult) -> SpanResult:
        """The answer with the times of its words, if they are wanted."""
        how, said = self._order.options.words, answer.hypothesis
        found = await word_times.words(
            self._engine, answer.span, said.text, said.language, how, priority=self._priority
        )
        return replace(answer, words=found)

    async def _transcribed(self) -> list[SpanResult]:
        temperature = self._order.options.temperature
        answer = await self._answer(self._feed, self._span, temperature)
        if self._good_or_given(answer):
            return [answer]
        self._replaced = True
        if temperature > 0:
            (answer,) = await self._again([self._span])
        if answer.hypothesis.finish is Finish.END or not self._span.divisible:
            return [answer]
        return await self._again(self._span.halves())

    def _good_or_given(self, answer: SpanResult) -> bool:
        return answer.hypothesis.finish is Finish.END or self._given

    async def _again(self, spans: Sequence[SpeechSpan]) -> list[SpanResult]:
        feeds = [self._submit(span, 0.0) for span in spans]
        try:
            return [await self._answer(feed, span, 0.0) for feed, span in zip(feeds, spans, strict=True)]
        finally:
            for feed in feeds:
                feed.cancel()

    async def _answer(self, feed: EngineStream, span: SpeechSpan, temperature: float) -> SpanResult:
        done = await feed.result()
        return SpanResult(span, done.hypothesis, temperature, done.queue_s, done.infer_s, done.load_s)

    def _submit(self, span: SpeechSpan, temperature: float) -> EngineStream:
        options = self._order.options
        utterance = Utterance(
            audio=span.audio,
            language=options.language,
            context=options.context,
            temperature=temperature,
            stream=self._order.pieces,
        )
        return EngineClient(self._engine).stream(utterance, priority=self._priority, deadline_s=self._order.deadline_s)
