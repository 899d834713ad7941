"""Bytes, however they are cut, to frames of 512 samples at 16 kHz.

The input is cut into blocks of a fixed size before it is resampled, so that what comes out depends on the bytes alone
and never on how the network had cut them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.live.machine.cutting import WholeSamples
from asr_server.live.machine.events import Samples

# One stream to 16 kHz: the next block (n,) and whether it is the last -> what is ready, (m,).
Resample = Callable[[Samples, bool], Samples]

INPUT_RATES_HZ = (8_000, 16_000, 24_000, 44_100, 48_000)

_BLOCKS_PER_S = 50  # 20 ms: a whole number of samples at every input rate
_FULL_SCALE = 32_768.0
_NONE: Samples = np.zeros(0, np.float32)


class Framing:
    """The frames of one input stream."""

    def __init__(self, input_rate_hz: int, resampler: Callable[[int], Resample]) -> None:
        """`resampler` makes a fresh stream to 16 kHz, for input that has another rate."""
        self._rate_hz = input_rate_hz
        self._resampler = resampler
        self._block = input_rate_hz // _BLOCKS_PER_S
        self._whole_samples = WholeSamples()
        self._input: Samples = _NONE
        self._ready: Samples = _NONE
        self._resample: Resample | None = None
        self._restart()

    def clear(self) -> None:
        """Forget what is buffered and start afresh; the next byte is the first of a sample."""
        self._whole_samples.clear()
        self._restart()

    def push(self, pcm: bytes) -> list[Samples]:
        """16-bit little-endian bytes -> the full frames that are ready, each (512,) float32."""
        samples = np.frombuffer(self._whole_samples.push(pcm), "<i2").astype(np.float32) / _FULL_SCALE
        self._input = np.concatenate((self._input, samples))
        self._ready = np.concatenate((self._ready, self._resampled()))
        return self._frames()

    def flush(self) -> list[Samples]:
        """All that is buffered, the last frame perhaps shorter. An odd byte waits for its other half."""
        rest = self._input
        if self._resample is not None:
            rest = self._resample(rest, True)
        self._ready = np.concatenate((self._ready, rest))
        frames = self._frames()
        if len(self._ready):
            frames.append(self._ready)
        self._restart()
        return frames

    @property
    def buffered_samples(self) -> int:
        """Samples at 16 kHz (rounded down) that are in no frame yet; the resampler's own delay not counted."""
        return len(self._ready) + len(self._input) * SAMPLE_RATE // self._rate_hz

    def _restart(self) -> None:
        self._input = self._ready = _NONE
        self._resample = None if self._rate_hz == SAMPLE_RATE else self._resampler(self._rate_hz)

    def _resampled(self) -> Samples:
        if self._resample is None:
            ready, self._input = self._input, _NONE
            return ready
        whole = len(self._input) // self._block * self._block
        blocks = self._input[:whole].reshape(-1, self._block)
        self._input = self._input[whole:].copy()
        return np.concatenate([_NONE, *(self._resample(block, False) for block in blocks)])

    def _frames(self) -> list[Samples]:
        whole = len(self._ready) // FRAME_SAMPLES * FRAME_SAMPLES
        frames = list(self._ready[:whole].reshape(-1, FRAME_SAMPLES))
        self._ready = self._ready[whole:].copy()
        return frames
