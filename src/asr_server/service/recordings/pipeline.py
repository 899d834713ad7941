"""The spans of one recording, found while it is decoded and at work at once, a bounded number ahead of the reader."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from asr_server.audio.decode import Progress
from asr_server.scheduling.job import Priority
from asr_server.service.recordings.segmenter import Segmenter
from asr_server.service.recordings.span import SpanContext, SpanTask

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Source
    from asr_server.scheduling.admission import Admission
    from asr_server.scheduling.thread import EngineThread
    from asr_server.service.recordings.segmenter import SpeechSpan

# Recordings longer than this are bulk work: they give way to short ones, whose callers wait in front of a screen.
_BULK_OVER_S = 60.0


@dataclass(frozen=True, slots=True)
class PipelineResources:
    """What recordings are worked on with. `look_ahead`: spans of one recording that are decoded and at work before the
    first of them is taken."""

    decoder: Decoder
    engine: EngineThread
    admission: Admission
    look_ahead: int


class RecordingPipeline:
    """An async context manager; on the way out all of it leaves the queue and the batch, and nothing runs on."""

    def __init__(self, means: PipelineResources, source: Source, order: SpanContext) -> None:
        self.progress = Progress()
        self._means = means
        self._source = source
        self._order = order
        self._ready: asyncio.Queue[SpanTask | Exception | None] = asyncio.Queue(means.look_ahead)
        self._begun: list[SpanTask] = []
        self._any = False
        self._held = ExitStack()

    async def __aenter__(self) -> RecordingPipeline:
        self._task = asyncio.create_task(self._find())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Before the first wait: whoever cancels a reader may do so at every one of its waits.
        self._task.cancel()
        tasks = [self._task, *(work.leave() for work in self._begun)]
        self._held.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next(self) -> SpanTask | None:
        """The next span in the order of the recording; None at its end.

        Raises what is wrong with the recording, `Overloaded` before the first span, `TimeoutError` at the deadline.
        """
        async with asyncio.timeout(self._order.deadline_s - time.monotonic()):
            found = await self._ready.get()
        if isinstance(found, Exception):
            raise found
        self._begun = [work for work in self._begun if not work.over]
        return found

    async def _find(self) -> None:
        try:
            await self._spans()
            await self._ready.put(None)
        except Exception as error:  # in its place: what was said before the damage is answered first
            await self._ready.put(error)

    async def _spans(self) -> None:
        segmenter, progress, admission = Segmenter(self._order.options.cutting), self.progress, self._means.admission
        hold = self._held.enter_context(admission.hold())
        async with aclosing(self._means.decoder.stream(self._source, progress)) as blocks:
            async for block in blocks:
                length_s = max(progress.claimed_s, progress.decoded_s)
                admission.measure(hold, length_s)
                for span in await asyncio.to_thread(segmenter.push, block):
                    await self._begin(span, length_s)
            admission.measure(hold, progress.decoded_s)
        for span in await asyncio.to_thread(segmenter.finish):
            await self._begin(span, progress.decoded_s)

    async def _begin(self, span: SpeechSpan, length_s: float) -> None:
        priority = self._order.options.priority
        if priority is Priority.INTERACTIVE and length_s > _BULK_OVER_S:
            priority = Priority.BULK
        work = SpanTask(self._means.engine, span, self._order, priority)
        is_first, self._any = not self._any, True
        self._begun.append(work)
        await self._ready.put(work)
        if is_first and self._order.pieces:
            # Prefilling the spans behind it first would make the reader wait for its first word several times as long.
            await work.begun()
