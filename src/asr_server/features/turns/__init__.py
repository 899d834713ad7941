"""The end of a speaker's turn, estimated from the sound by Smart Turn v3.2. docs/use/turns.md is its page.

The network takes 8 s of audio at 16 kHz, padded with silence at the beginning, as the log-mel spectrogram of Whisper
with 80 bands. The audio is normalised to mean 0 and variance 1 first. The file and the form of its input come from the
package pipecat-ai 1.14.0 (BSD-2-Clause; NOTICE has its source and checksum).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.environment import onnx_session
from asr_server.core.setting_types import Endpointing
from asr_server.engine.feature import END_OF_TURN, Asked, Feature
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr.frontend import LogMel, MelSettings

if TYPE_CHECKING:
    import onnxruntime

Samples = NDArray[np.float32]
Mels = NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("smart-turn-v3.2-cpu.onnx")
_SAMPLES = 8 * SAMPLE_RATE
_LEAST_VARIANCE = 1e-7


class SmartTurn:
    """The network, loaded at the first use. `probability` may be called from any thread."""

    def probability(self, speech: Samples) -> float:
        """Return how likely the speaker has finished, for speech (n,) at 16 kHz up to now; the last 8 s count."""
        features = log_mels(speech)[None]
        (found,) = _session().run(None, {"input_features": features})
        return float(found.reshape(-1)[0])


def log_mels(speech: Samples) -> Mels:
    """Return the network's input (80, 800) for the end of this audio (n,)."""
    last = speech[-_SAMPLES:].astype(np.float32)
    audio = np.pad(last, (_SAMPLES - len(last), 0))
    audio = (audio - audio.mean()) / np.sqrt(audio.var() + _LEAST_VARIANCE)
    features: Mels = _mels()(audio).astype(np.float32)
    return features


@functools.cache
def _mels() -> LogMel:
    return LogMel(MelSettings(bins=80))


@functools.cache
def _session() -> onnxruntime.InferenceSession:
    return onnx_session(WEIGHTS)


def _options(asked: Asked) -> Iterator[Option]:
    if asked.settings.endpointing is Endpointing.PAUSE:
        yield Option(END_OF_TURN, False, "", "ENDPOINTING=pause: the length of a pause alone ends an utterance")
    else:
        yield Option(END_OF_TURN, True, "smart-turn-v3.2", "live: a pause where the speaker has finished is short")


FEATURE = Feature("turns", options=_options, end_of_turn=SmartTurn)
