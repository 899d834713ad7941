"""Cuts a stream of bytes into frames of 512 samples at 16 kHz.

The input is cut into blocks of a fixed size before it is resampled, so that the output depends only on the bytes
and never on how the network had cut them. The event loop only cuts bytes. The voice detection thread makes samples of
them, because each numpy operation releases the interpreter and then waits until other threads release it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.live.machine.events import NO_SAMPLES, Samples

if TYPE_CHECKING:
    from asr_server.audio.resample import Resampler

# The slices in which a session processes received audio: 128 ms at 16 kHz.
SLICE_BYTES = 4 * 1024

INPUT_RATES_HZ = (8_000, 16_000, 24_000, 44_100, 48_000)

_BLOCKS_PER_S = 50  # 20 ms: a whole number of samples at every input rate
_SCALE = np.float32(1 / 32_768)


def to_samples(pcm: bytes) -> Samples:
    """Return the samples of 16-bit little-endian bytes, float32 (n,) in [-1, 1)."""
    samples: Samples = np.frombuffer(pcm, "<i2") * _SCALE
    return samples


@dataclass(frozen=True, slots=True)
class Block:
    """Unprocessed audio of one session. Call `samples` for the blocks of a session in order, on any thread."""

    pcm: bytes  # 16-bit samples at the session's rate
    framing: Framing
    is_last: bool = False  # the stream ends with it

    @property
    def needs_no_resampling(self) -> bool:
        return self.framing.rate_hz == SAMPLE_RATE

    @property
    def most_frames(self) -> int:
        """Return an upper bound of the frames that the block may complete."""
        samples = len(self.pcm) // 2 * SAMPLE_RATE // self.framing.rate_hz
        # Resampling adds the samples held back from earlier blocks and the resampler's delay.
        return -(-samples // FRAME_SAMPLES) + (0 if self.needs_no_resampling else 2)

    def samples(self) -> Samples:
        """Return the samples at 16 kHz that are ready, in whole frames of 512. The last block also returns the
        remaining samples."""
        return to_samples(self.pcm) if self.needs_no_resampling else self.framing.resampled(self)


class Framing:
    """The frames of one input stream."""

    def __init__(self, input_rate_hz: int) -> None:
        self.rate_hz = input_rate_hz
        self._samples = FRAME_SAMPLES if input_rate_hz == SAMPLE_RATE else input_rate_hz // _BLOCKS_PER_S  # of a block
        self._rest = b""  # less than a block
        self._ready: Samples = NO_SAMPLES  # resampled, less than a frame
        self._resampler: Resampler | None = None

    def push(self, pcm: bytes) -> Block | None:
        """Add bytes and return the audio that is complete now, or None."""
        data = self._rest + pcm
        whole = len(data) - len(data) % (2 * self._samples)
        self._rest = data[whole:]
        return Block(data[:whole], self) if whole else None

    def flush(self) -> Block | None:
        """Return the remaining audio, whose last frame may be shorter. An odd byte waits for its other half."""
        whole = len(self._rest) - len(self._rest) % 2
        pcm, self._rest = self._rest[:whole], self._rest[whole:]
        return Block(pcm, self, is_last=True) if pcm or self.rate_hz != SAMPLE_RATE else None

    def resampled(self, block: Block) -> Samples:
        """Return the samples of a block at another rate, as `Block.samples` does."""
        if self._resampler is None:
            from asr_server.audio.resample import Resampler  # here, since most servers never need its library

            self._resampler = Resampler()
        resampler, samples, size = self._resampler, to_samples(block.pcm), self._samples
        whole = len(samples) - len(samples) % size
        parts = [resampler.push(part, self.rate_hz) for part in samples[:whole].reshape(-1, size)]
        parts += [resampler.push(samples[whole:], self.rate_hz), resampler.flush()] if block.is_last else []
        ready = np.concatenate([self._ready, *parts])
        ends = len(ready) if block.is_last else len(ready) - len(ready) % FRAME_SAMPLES
        self._ready = ready[ends:].copy()
        return ready[:ends]

    @property
    def buffered_samples(self) -> int:
        """Samples at 16 kHz (rounded down) that are in no frame yet, without the resampler's own delay."""
        return len(self._ready) + len(self._rest) // 2 * SAMPLE_RATE // self.rate_hz


def pieces(pcm: bytes, size_bytes: int) -> Iterator[bytes]:
    for at in range(0, len(pcm), size_bytes):
        yield pcm[at : at + size_bytes]


class WholeSamples:
    """Joins pieces of a stream of 16-bit samples, and cuts it between samples."""

    def __init__(self) -> None:
        self._rest = b""  # the first byte of a sample whose second is still to come

    def push(self, pcm: bytes) -> bytes:
        """Return the samples that are complete now."""
        data = self._rest + pcm
        whole = len(data) // 2 * 2
        self._rest = data[whole:]
        return data[:whole]

    def clear(self) -> None:
        """Discard an odd byte: the next byte begins a new sample."""
        self._rest = b""
