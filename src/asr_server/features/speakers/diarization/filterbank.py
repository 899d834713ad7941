"""Log-mel features as the Kaldi toolkit computes them, which models for voices are trained on.

80 bands from 20 Hz to 8 kHz, windows of 25 ms every 10 ms, pre-emphasis 0.97, no dithering. Source: Kaldi's
feature-fbank.cc and feature-window.cc with the options of the WeSpeaker and the 3D-Speaker recipes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE

Features = NDArray[np.float32]

BANDS = 80
FRAME_SAMPLES, HOP_SAMPLES = 400, 160
_FFT = 512
_LOWEST_HZ, _HIGHEST_HZ = 20.0, 8000.0
_PRE_EMPHASIS = 0.97
_LEAST_ENERGY = np.finfo(np.float32).eps


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """The form of the input that models were trained on."""

    scale: float  # the largest possible sample
    window: Features  # (400,) float32


WESPEAKER = Recipe(scale=32_768, window=np.hamming(FRAME_SAMPLES).astype(np.float32))
# Kaldi's default window, named after its author.
THREE_D_SPEAKER = Recipe(scale=1, window=(np.hanning(FRAME_SAMPLES) ** 0.85).astype(np.float32))


def features(samples: NDArray[np.float32], recipe: Recipe = WESPEAKER) -> Features:
    """(n,) float32 at 16 kHz, |x| <= 1 -> (frames, 80) float32, each band with mean 0. n >= 400."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME_SAMPLES)[::HOP_SAMPLES] * np.float32(recipe.scale)
    frames = frames - frames.mean(axis=1, keepdims=True)
    previous = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    spectrum = np.fft.rfft((frames - _PRE_EMPHASIS * previous) * recipe.window, _FFT)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    logs = np.log(np.maximum(power @ _FILTERS, _LEAST_ENERGY))
    centred: Features = logs - logs.mean(axis=0)
    return centred


def _mel(hz: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return 1127.0 * np.log1p(np.asarray(hz, np.float64) / 700.0)


def _filters() -> Features:
    """Return (257, 80): triangles of equal width on the mel scale. The bin at half the sample rate is in no band."""
    edges = np.linspace(_mel(_LOWEST_HZ), _mel(_HIGHEST_HZ), BANDS + 2)
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    bins = _mel(np.arange(_FFT // 2) * SAMPLE_RATE / _FFT)[:, None]
    rise, fall = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    return np.pad(np.maximum(0.0, np.minimum(rise, fall)), ((0, 1), (0, 0))).astype(np.float32)


_FILTERS = _filters()
