"""Samples to log-mel features with the checkpoint's own filters, of a whole clip or from any frame on.

The formula is that of `WhisperFeatureExtractor`: power spectrum of Hann windows of 400 samples every 160, centred,
reflected at the ends, the last frame dropped; mel filters; log10 of at least 1e-10; then clamped to 8 below the
loudest value of the whole clip, and scaled. All but the clamp is local to 400 samples, so a growing recording needs
only its new frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.torch import memory

# The SDK pads clips under half a second with zeros at the end; the model was never shown shorter ones.
MIN_SAMPLES = SAMPLE_RATE // 2
_RANGE = 8.0  # log10_mel below the loudest value
_CPU = torch.device("cpu")


class LogMel:
    """The filters of one feature extractor, which compute on `device`: for 30 s a core takes 15 ms, in which a GPU
    would wait."""

    def __init__(self, extractor: Any, device: torch.device = _CPU) -> None:
        self._n_fft: int = extractor.n_fft
        self.hop: int = extractor.hop_length
        self._device = device
        self._filters = torch.from_numpy(extractor.mel_filters).float().T.contiguous().to(device)
        self._window = torch.hann_window(self._n_fft).to(device)

    @property
    def reach(self) -> int:
        """Samples on either side of its centre that a frame depends on."""
        return self._n_fft // 2

    def log10_mel(self, audio: NDArray[np.float32], first_frame: int = 0) -> torch.Tensor:
        """log10 of the mel power, unclamped: (128, T - first_frame) of float32 (n,) samples, T = n // 160.

        Clips under half a second are padded to it. `first_frame` must be 0 or at least 2.
        """
        if len(audio) < MIN_SAMPLES:
            audio = np.pad(audio, (0, MIN_SAMPLES - len(audio)))
        frames = len(audio) // self.hop
        start = max(0, first_frame * self.hop - self.reach)
        signal = memory.upload(torch.from_numpy(np.ascontiguousarray(audio[start:])), self._device)
        # Reflected at the end of the recording always, at the start only where the recording starts.
        left = self.reach if first_frame == 0 else 0
        signal = F.pad(signal[None], (left, self.reach), mode="reflect")[0]
        spectrum = torch.stft(signal, self._n_fft, self.hop, window=self._window, center=False, return_complex=True)
        power = spectrum[:, : frames - first_frame].abs() ** 2
        return torch.clamp(self._filters @ power, min=1e-10).log10()

    def __call__(self, audio: NDArray[np.float32]) -> torch.Tensor:
        """Features (128, T) of a whole clip."""
        log10_mel = self.log10_mel(audio)
        return features(log10_mel, floor(log10_mel))


def floor(log10_mel: torch.Tensor) -> float:
    """Return the clamp of a clip: 8 log10_mel below its loudest value."""
    return float(log10_mel.max()) - _RANGE


def features(log10_mel: torch.Tensor, lowest: float) -> torch.Tensor:
    """Decades to what the encoder was trained on: clamped from below and scaled."""
    return (log10_mel.clamp(min=lowest) + 4.0) / 4.0


def causal_features(log10_mel: torch.Tensor, loudest: float) -> tuple[torch.Tensor, float]:
    """Clamp features as `features` does, but for an encoder that hears the past alone: each frame of (128, T) is
    clamped relative to the loudest value up to it, `loudest` among them. Returns the loudest value up to the end too.
    """
    if log10_mel.shape[1] == 0:
        return log10_mel, loudest
    so_far = log10_mel.amax(0).cummax(0).values.clamp(min=loudest)
    return (torch.maximum(log10_mel, so_far - _RANGE) + 4.0) / 4.0, float(so_far[-1])
