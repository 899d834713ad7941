"""The engine thread as coroutines for speech: a sentence in, its samples as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.client import JobStream
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechTraits, SpokenSentence
from asr_server.schedule.job import DEFAULT, Job, Priority, RequestClock

if TYPE_CHECKING:
    from asr_server.schedule.thread import Scheduler

# One sentence: its samples as float32 arrays (n,) at 24 kHz, then how it ended.
SpeechStream = JobStream[NDArray[np.float32], SpokenSentence]


@dataclass(frozen=True, slots=True, eq=False)
class SpeechEngineClient:
    """Submits sentences for one speech engine to its thread."""

    thread: Scheduler
    traits: SpeechTraits
    model_id: str  # what speaks
    model: str = DEFAULT  # its name on the thread

    @property
    def clock(self) -> RequestClock:
        return self.thread.request_clock

    def speak(self, sentence: Sentence, *, priority: Priority, duration_s: float, deadline_s: float) -> SpeechStream:
        """Return the samples as they come; the sentence is queued at once. `duration_s`: about how long it will be.

        What is not spoken at `deadline_s` by `clock` ends with `DeadlineExceeded`. Raises `ShuttingDown` when no new
        work is taken, and `EngineFailed`.
        """
        return SpeechStream(self.thread, Job(sentence, priority, duration_s, deadline_s, self.model))
