"""Turns samples into log-mel features with the checkpoint's own filters, for a whole clip or from any frame on.

The steps follow `WhisperFeatureExtractor`: power spectrum of Hann windows of 400 samples every 160, centred,
reflected at the ends, the last frame dropped; mel filters; log10 of at least 1e-10; then clamped to 8 below the loudest
value of the whole clip, and scaled. All steps except the clamp are local to 400 samples, so a growing recording needs
only its new frames.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE

# The SDK pads clips under half a second with zeros at the end; the model was never shown shorter ones.
MIN_SAMPLES = SAMPLE_RATE // 2
RANGE = 8.0  # log10_mel below the loudest value
LEAST_POWER = 1e-10
_HIGHEST_HZ = 8000.0
# Slaney's scale is linear up to this frequency and logarithmic above.
_LINEAR_HZ, _MEL_HZ = 1000.0, 200 / 3
_LOG_STEP = np.log(6.4) / 27

# Log-mel frames (128, T): a numpy array, or a tensor on a GPU.
Frames = Any


@dataclass(frozen=True, slots=True)
class MelSettings:
    """The settings of a checkpoint's features."""

    n_fft: int = 400  # samples of a window
    hop: int = 160  # samples from one frame to the next
    bins: int = 128

    @classmethod
    def load(cls, directory: Path) -> MelSettings:
        """Read the settings of a checkpoint. Raises any error that its files cause."""
        of_sdk, of_both = directory / "preprocessor_config.json", directory / "processor_config.json"
        if of_sdk.is_file():
            found = json.loads(of_sdk.read_text(encoding="utf-8"))
        else:
            found = json.loads(of_both.read_text(encoding="utf-8")).get("feature_extractor", {})
        default = cls()
        return cls(
            int(found.get("n_fft", default.n_fft)),
            int(found.get("hop_length", default.hop)),
            int(found.get("feature_size", default.bins)),
        )


class LogMel:
    """The filters of a checkpoint."""

    def __init__(self, settings: MelSettings) -> None:
        self.n_fft, self.hop = settings.n_fft, settings.hop
        self.filters = mel_filters(settings.n_fft, settings.bins)
        self.window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.n_fft) / self.n_fft)).astype(np.float32)

    @property
    def reach(self) -> int:
        """Samples on either side of its centre that a frame depends on."""
        return self.n_fft // 2

    def log10_mel(self, audio: NDArray[np.float32], first_frame: int = 0) -> Frames:
        """Return log10 of the mel power, unclamped: (128, T - first_frame) from float32 samples (n,), T = n // 160.

        Clips under half a second are padded to half a second. `first_frame` must be 0 or at least 2.
        """
        if len(audio) < MIN_SAMPLES:
            audio = np.pad(audio, (0, MIN_SAMPLES - len(audio)))
        frames = len(audio) // self.hop
        start = max(0, first_frame * self.hop - self.reach)
        # Always reflect at the end of the recording, but at the start only if the signal begins there.
        left = self.reach if first_frame == 0 else 0
        return self.log10(np.pad(audio[start:], (left, self.reach), mode="reflect"), frames - first_frame)

    def log10(self, signal: NDArray[np.float32], frames: int) -> Frames:
        """Return log10 of the mel power (128, frames) of the first windows of a signal."""
        parts = np.lib.stride_tricks.sliding_window_view(signal, self.n_fft)[:: self.hop][:frames]
        spectrum = np.fft.rfft(parts * self.window)
        power = spectrum.real**2 + spectrum.imag**2
        return np.log10(np.maximum(self.filters @ power.T, LEAST_POWER))

    def join(self, parts: Sequence[Frames]) -> Frames:
        return np.concatenate(parts, axis=1)

    def __call__(self, audio: NDArray[np.float32]) -> Frames:
        """Features (128, T) of a whole clip."""
        log10_mel = self.log10_mel(audio)
        return features(log10_mel, floor(log10_mel))


def mel_filters(n_fft: int, bins: int) -> NDArray[np.float32]:
    """Return the weights (bins, n_fft // 2 + 1) of triangles that are equally wide on Slaney's mel scale and have equal
    areas (Slaney, Auditory Toolbox, 1998)."""
    edges = _hertz(np.linspace(0.0, _mel(_HIGHEST_HZ), bins + 2))
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    slopes, widths = edges[:, None] - frequencies, np.diff(edges)[:, None]
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def _mel(hertz: float) -> float:
    if hertz < _LINEAR_HZ:
        return hertz / _MEL_HZ
    return float(_LINEAR_HZ / _MEL_HZ + np.log(hertz / _LINEAR_HZ) / _LOG_STEP)


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = mel - _LINEAR_HZ / _MEL_HZ
    return np.where(above < 0, mel * _MEL_HZ, _LINEAR_HZ * np.exp(above * _LOG_STEP))


def floor(log10_mel: Frames) -> Frames:
    """Return the clamp of a clip, 8 log10_mel below its loudest value. It stays on the GPU if the frames are there."""
    return log10_mel.max() - RANGE


def features(log10_mel: Frames, lowest: Frames) -> Frames:
    """Clamp log10 values from below and scale them, as the encoder was trained."""
    return (log10_mel.clip(min=lowest) + 4.0) / 4.0
