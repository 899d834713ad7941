"""Samples to log-mel features, through the checkpoint's own feature extractor. Not the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
# The SDK pads clips under half a second with zeros at the end; the model was never shown shorter ones.
_MIN_SAMPLES = SAMPLE_RATE // 2


def log_mel(extractor: Any, audio: NDArray[np.float32]) -> torch.Tensor:
    """Log-mel features, float32 (128, T), T = 100 a second, of float32 (n,) samples at 16 kHz.

    The values are clamped to the loudest value of the whole clip minus 8 (in log10): features of a part of a clip are
    not a part of the features of the clip.
    """
    if len(audio) < _MIN_SAMPLES:
        audio = np.pad(audio, (0, _MIN_SAMPLES - len(audio)))
    features = extractor(
        audio,
        sampling_rate=SAMPLE_RATE,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="pt",
    )
    frames = int(features["attention_mask"].sum())
    mel: torch.Tensor = features["input_features"][0, :, :frames]
    return mel
