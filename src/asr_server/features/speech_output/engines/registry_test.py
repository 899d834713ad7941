"""Texts that the registry has spoken without a server."""

import io
import wave

import numpy as np

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.engines import registry


def test_a_text_is_spoken():
    """The file has the seconds that are stated, and is not silent."""
    content, duration_s = registry.spoken("Turn on the kitchen lights, please.", ())
    with wave.open(io.BytesIO(content)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (SPEECH_RATE, 1, 2)
    assert 1 < duration_s == len(samples) / SPEECH_RATE < 5
    assert np.abs(samples).max() > 3_000
