"""The engine thread as coroutines for speech: a sentence in, its samples as they come."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.client import JobStream
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechTraits, SpokenSentence
from asr_server.schedule.job import DEFAULT, Job, Priority

if TYPE_CHECKING:
    from asr_server.schedule.model import EngineSnapshot, ModelStatus
    from asr_server.schedule.thread import Scheduler


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
        return self._thread.snapshot()

    @property
    def status(self) -> ModelStatus:
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


class SpeechStream(JobStream[NDArray[np.float32], SpokenSentence]):
    """One sentence: its samples as float32 arrays (n,) at 24 kHz, then how it ended."""
