"""The voice detector and resampler of `audio/`, in the form that a `LiveMachine` takes."""

from __future__ import annotations

import numpy as np

from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES
from asr_server.live.config import Probability
from asr_server.live.events import Samples
from asr_server.live.framing import Resample


def voice() -> Probability:
    """A fresh voice detector."""
    scorer = SpeechProbability()
    return lambda frame: float(scorer.push(frame)[0])


def resampler(rate_hz: int) -> Resample:
    """A fresh stream from `rate_hz` to 16 kHz."""
    from asr_server.audio.resample import Resampler

    stream = Resampler()

    def resample(block: Samples, last: bool) -> Samples:
        ready = stream.push(block, rate_hz)
        return np.concatenate((ready, stream.flush())) if last else ready

    return resample


def warm_up() -> None:
    """Load the voice detector now, off the event loop. Raises `ModelUnavailable` if it cannot be loaded."""
    SpeechProbability().push(np.zeros(FRAME_SAMPLES, np.float32))
