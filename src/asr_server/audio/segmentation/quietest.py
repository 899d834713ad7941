"""The quietest place to cut audio that is too long."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import FRAME_SAMPLES

SMOOTHED_FRAMES = 5  # 160 ms: shorter dips of loudness are the closures of plosives, not gaps between words
_PROBABILITY_DB = 20.0  # how much a speech probability of 1 adds to the loudness; chosen, not measured


def frame_power(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean square of each frame, (n,) float32 -> (ceil(n / 512),) float32; the last frame is filled up with silence."""
    frames = np.pad(audio, (0, -len(audio) % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES)
    power: NDArray[np.float32] = np.einsum("fs,fs->f", frames, frames) / np.float32(FRAME_SAMPLES)
    return power


def cut_cost(power: float, probability: float) -> float:
    """Return how bad a cut in a frame would be, in dB: its loudness, and more the likelier it holds speech."""
    return 10.0 * math.log10(power + 1e-10) + _PROBABILITY_DB * probability


def quietest_frame(costs: Sequence[float], low: int, high: int) -> int:
    """Return the frame in [low, high) whose surroundings of 160 ms cost least, the first of several. 0 <= low <
    len(costs)."""
    padded = np.pad(np.array(costs), SMOOTHED_FRAMES // 2, mode="edge")
    smooth = np.convolve(padded, np.ones(SMOOTHED_FRAMES) / SMOOTHED_FRAMES, "valid")
    return low + int(smooth[low:high].argmin())


def quietest_middle(audio: NDArray[np.float32]) -> int:
    """Return the sample at which audio, float32 (n,) at 16 kHz, is cut in two: where its middle third is quietest."""
    third = len(audio) // 3
    return third + int(frame_power(audio[third:-third]).argmin()) * FRAME_SAMPLES
