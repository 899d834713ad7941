"""The two neural networks: one finds who of up to three people speaks in ten seconds, one turns a voice into a vector.

Segmentation: pyannote's "powerset" segmentation (Plaquet and Bredin, 2023). Embedding: a network on log-mel features,
such as WeSpeaker's ResNet34 (Wang et al., 2023). Both run in onnxruntime on one thread.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization import filterbank
from asr_server.features.speakers.diarization.filterbank import WESPEAKER, Recipe

if TYPE_CHECKING:
    import onnxruntime

    from asr_server.features.speakers.diarization.turns import VoicePrint

Samples = NDArray[np.float32]
Activity = NDArray[np.bool_]

WINDOW_SAMPLES = 10 * SAMPLE_RATE
LOCAL_SPEAKERS = 3
# Exports of the segmentation give a class for each set of up to two of three speakers, in this order.
_SETS = [(), *((k,) for k in range(LOCAL_SPEAKERS)), *itertools.combinations(range(LOCAL_SPEAKERS), 2)]
_MEMBERS = np.array([[k in chosen for k in range(LOCAL_SPEAKERS)] for chosen in _SETS])
CLASSES = len(_SETS)


class Segmentation:
    """Speech of up to three people in a window of 10 s. Who is first, second and third differs between windows."""

    def __init__(self, network: onnxruntime.InferenceSession) -> None:
        self._network = network
        self._input = network.get_inputs()[0].name

    def __call__(self, samples: Samples) -> Activity:
        """Turn (n,) float32, n <= 160,000, into (frames, 3). Frames divide the 10 s evenly; silence fills what is
        missing."""
        window = np.zeros((1, 1, WINDOW_SAMPLES), np.float32)
        window[0, 0, : len(samples)] = samples
        (found,) = self._network.run(None, {self._input: window})
        if found.shape[-1] == CLASSES:
            active: Activity = _MEMBERS[found[0].argmax(axis=-1)]
        else:
            active = found[0] > 0.5
        return active


class Embedding:
    """The voice of one person."""

    def __init__(self, network: onnxruntime.InferenceSession, recipe: Recipe = WESPEAKER) -> None:
        self._network = network
        self._recipe = recipe
        self._inputs = [each.name for each in network.get_inputs()]

    def __call__(self, samples: Samples) -> VoicePrint:
        """Turn (n,) float32, n >= 400, into (dimensions,) float32. Half a second is too short to recognise people
        by."""
        frames = filterbank.features(samples, self._recipe)[None]
        given = [frames, np.ones(frames.shape[:2], np.float32)]  # the second: a weight for each frame
        (found, *_) = self._network.run(None, dict(zip(self._inputs, given, strict=False)))
        voice: VoicePrint = found[0].astype(np.float32)
        return voice
