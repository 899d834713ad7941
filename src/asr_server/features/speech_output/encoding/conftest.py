"""Sounds for the tests of encoding."""

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE


def tone(hertz: float, duration_s: float, level: float = 0.2) -> NDArray[np.float32]:
    """A tone with harmonics, as voices have them; `level` is the amplitude of the lowest."""
    times = np.arange(round(duration_s * SPEECH_RATE)) / SPEECH_RATE
    sound = sum(np.sin(2 * np.pi * hertz * part * times) / part**2 for part in range(1, 9))
    return (level * sound).astype(np.float32)


def silence(duration_s: float) -> NDArray[np.float32]:
    return np.zeros(round(duration_s * SPEECH_RATE), np.float32)
