"""Smart Turn v3.2 on onnxruntime: the last seconds of speech to the probability that the speaker has finished.

The network takes 8 s of audio at 16 kHz, filled with silence at its beginning, as the log-mel spectrogram of Whisper:
windows of 25 ms every 10 ms, 80 mel bands by Slaney's formula, base-10 logarithms within 8 of the largest one. The
audio is brought to mean 0 and variance 1 first. The file and the form of its input are those of the package
pipecat-ai 1.14.0 (BSD-2-Clause; NOTICE has its source and checksum).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.environment import prefer

if TYPE_CHECKING:
    import onnxruntime

Samples = NDArray[np.float32]
Mels = NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("smart-turn-v3.2-cpu.onnx")
_SAMPLES = 8 * SAMPLE_RATE
_WINDOW, _HOP, _BANDS = 400, 160, 80
_LEAST_VARIANCE, _LEAST_ENERGY = 1e-7, 1e-10


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
    around = np.pad(audio, _WINDOW // 2, mode="reflect")
    windows = sliding_window_view(around, _WINDOW)[::_HOP][:-1]
    spectrum = np.fft.rfft(windows * _hann())
    energies = _mel_bands() @ (spectrum.real**2 + spectrum.imag**2).T
    logs = np.log10(np.maximum(energies, _LEAST_ENERGY))
    features: Mels = ((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0).astype(np.float32)
    return features


@functools.cache
def _hann() -> NDArray[np.float64]:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)


@functools.cache
def _mel_bands() -> NDArray[np.float64]:
    """Return the weights (80, 201) of triangular bands of equal area, evenly spaced on Slaney's mel scale."""
    edges = _hertz(np.linspace(0.0, _mel(SAMPLE_RATE / 2), _BANDS + 2))
    lower, middle, upper = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    hertz = np.linspace(0.0, SAMPLE_RATE / 2, _WINDOW // 2 + 1)
    rising, falling = (hertz - lower) / (middle - lower), (upper - hertz) / (upper - middle)
    return np.maximum(0.0, np.minimum(rising, falling)) * 2.0 / (upper - lower)


# Slaney's scale (Auditory Toolbox, 1998): linear up to 1 kHz, then 27 steps for each factor of 6.4.
_LINEAR, _KNEE_HZ, _STEP = 200.0 / 3.0, 1000.0, np.log(6.4) / 27.0


def _mel(hertz: float) -> float:
    """Return a frequency above the knee on the mel scale."""
    return float(_KNEE_HZ / _LINEAR + np.log(hertz / _KNEE_HZ) / _STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    knee = _KNEE_HZ / _LINEAR
    return np.where(mels < knee, mels * _LINEAR, _KNEE_HZ * np.exp(_STEP * (mels - knee)))


@functools.cache
def _session() -> onnxruntime.InferenceSession:
    prefer("ORT_DISABLE_TELEMETRY", "1")  # must be set before the import, or its builds report to their maker
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # other cores are busy with the recogniser
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(WEIGHTS), options, providers=["CPUExecutionProvider"])
