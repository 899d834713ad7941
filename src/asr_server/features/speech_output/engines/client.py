"""The engine thread as coroutines for speech: a sentence in, its samples as they come.

Everything here runs on the event loop; the engine thread reaches it through futures and `call_soon_threadsafe` alone,
so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from asr_server.engine.client import until
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechTraits, SpokenSentence
from asr_server.schedule.job import DEFAULT, Job, Priority

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.schedule.model import EngineSnapshot, ModelStatus
    from asr_server.schedule.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class SpeechTimes:
    """The time that a sentence took, in parts."""

    queue_s: float  # waiting for the engine
    load_s: float  # waiting for the model to be loaded
    infer_s: float  # inside the engine


class SpeechEngineClient:
    """Submits sentences for one speech engine to its thread.

    `model_id`: what speaks. `model`: its name on the thread. `deadline_s` is by `clock`: what is not spoken by then
    ends with `DeadlineExceeded`.
    """

    def __init__(self, thread: Scheduler, traits: SpeechTraits, model_id: str, model: str = DEFAULT) -> None:
        self.traits = traits
        self.model_id = model_id
        self.clock = thread.request_clock
        self._thread = thread
        self._model = model

    def snapshot(self) -> EngineSnapshot:
        """Return the present state of the thread; never waits."""
        return self._thread.snapshot()

    @property
    def status(self) -> ModelStatus:
        """Return the state of the engine's model; never waits."""
        return self.snapshot().models[self._model]

    def lease(self) -> AbstractContextManager[None]:
        return self._thread.lease(model=self._model)

    def speak(
        self, sentence: Sentence, *, priority: Priority, duration_s: float, deadline_s: float | None = None
    ) -> SpeechStream:
        """Return the samples as they come; the sentence is queued at once. `duration_s`: about how long it will be.

        Raises `ShuttingDown` when no new work is taken, and `EngineFailed`.
        """
        job = Job[SpokenSentence](sentence, priority, duration_s, deadline_s, self._model)
        return SpeechStream(self._thread, job)


class SpeechStream:
    """The samples of one sentence: iterate over float32 arrays (n,) at 24 kHz, then ask for the `result`."""

    def __init__(self, thread: Scheduler, job: Job[SpokenSentence]) -> None:
        loop = asyncio.get_running_loop()
        self._job = job
        self._clock = thread.request_clock
        self._blocks: deque[NDArray[np.float32]] = deque()
        self._changed = asyncio.Event()
        job.on_delta = lambda block: cast(None, loop.call_soon_threadsafe(self._add, block))  # on the engine thread
        self._future = asyncio.wrap_future(thread.submit(job))
        # The result crosses over by `call_soon_threadsafe` too, so this runs after `_add` of every delta.
        self._future.add_done_callback(self._on_done)

    def __aiter__(self) -> SpeechStream:
        return self

    async def __anext__(self) -> NDArray[np.float32]:
        while not self._blocks:
            if self._future.done():
                raise StopAsyncIteration
            self._changed.clear()
            async with until(self._clock, self._job.deadline_s):
                await self._changed.wait()
        return self._blocks.popleft()

    async def result(self) -> SpokenSentence:
        """Return how the sentence ended. Raises `AsrError`."""
        return await self._future

    @property
    def times(self) -> SpeechTimes:
        """Known once there is a result."""
        job = self._job
        queue_s = job.started_s - job.queued_s - job.load_s
        return SpeechTimes(queue_s, job.load_s, job.ended_s - job.started_s)

    def cancel(self) -> None:
        """Take the sentence out of the queue or out of the batch; does nothing if it is done."""
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()  # now it counts as retrieved: asyncio does not log it

    def _add(self, block: object) -> None:
        self._blocks.append(cast("NDArray[np.float32]", block))
        self._changed.set()

    def _on_done(self, _: asyncio.Future[SpokenSentence]) -> None:
        self._changed.set()
        # The callback refers to this stream, and this stream to the job: without the cycle the memory is free at the
        # last reference.
        self._job.on_delta = None
