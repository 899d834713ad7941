"""The channels of a recording: kept apart, or mixed into one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

MAX_CHANNELS = 8  # that are kept: a file with more is mixed


def kept_channels(found: int, most: int) -> int:
    """Return how many channels are kept of those of a file: all, or one if there are more than `most`."""
    return found if found <= most else 1


def interleaved(channels: Samples, count: int) -> Samples:
    """Return (channels, n) float32 as (n, count), or as (n,) where `count` is 1.

    A part of a file whose channels are others than before (chained Ogg) is mixed, and goes to the first of several.
    """
    if count == 1:
        return mix(channels)
    if len(channels) == count:
        return np.ascontiguousarray(channels.T)
    frames: Samples = np.zeros((channels.shape[1], count), np.float32)
    frames[:, 0] = mix(channels)
    return frames


def mix(channels: Samples) -> Samples:
    """(channels, n) float32 -> (n,): the mean, as ffmpeg and the SDK do, unless the channels cancel each other.

    A balanced line recorded as stereo has its voice in opposite phase, and the mean would be near silence. If the
    mean has less than 1/20 of the energy that uncorrelated channels would leave in it (1 / channels), the first
    channel that is at least half as strong as the strongest is used instead. The choice is made again about every
    second.
    """
    count = channels.shape[0]
    first: Samples = channels[0]
    if count == 1:
        return first
    mean: Samples = channels.mean(axis=0, dtype=np.float32)
    energies = np.einsum("cn,cn->c", channels, channels, dtype=np.float64)
    if float(mean @ mean) >= 0.05 / count * float(energies.mean()):
        return mean
    strong: Samples = channels[int(np.argmax(energies >= 0.5 * energies.max()))]
    return strong
