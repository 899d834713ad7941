"""Converts a stream of integer PCM of any rate, width and channel count to 16-bit mono at 16 kHz."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asr_server.audio.resample import Resampler

# The lower bytes of a sample are noise to speech recognition, so only the upper two bytes are used.
_WIDTHS = (1, 2, 3, 4)
_MAX_CHANNELS = 32
_RATES_HZ = range(1_000, 768_001)


class UnknownFormat(ValueError):
    """PCM in an unsupported format. The message names the supported ones."""


@dataclass(frozen=True, slots=True)
class PcmFormat:
    """A format of samples: little-endian integers, interleaved. Raises `UnknownFormat`."""

    rate_hz: int
    width_bytes: int  # 1 byte unsigned, 2 to 4 bytes signed
    channels: int

    def __post_init__(self) -> None:
        whole = all(type(number) is int for number in (self.rate_hz, self.width_bytes, self.channels))
        if not whole or self.width_bytes not in _WIDTHS or self.rate_hz not in _RATES_HZ:
            raise UnknownFormat("Audio must be PCM of 1 to 4 bytes a sample at 1 to 768 kHz.")
        if not 1 <= self.channels <= _MAX_CHANNELS:
            raise UnknownFormat(f"Audio must have 1 to {_MAX_CHANNELS} channels.")

    @property
    def frame_bytes(self) -> int:
        return self.width_bytes * self.channels


class PcmStream:
    """A stream of chunks, which may be cut anywhere, even inside a sample. The format may change between chunks."""

    def __init__(self) -> None:
        self._resampler = Resampler()
        self._format: PcmFormat | None = None
        self._partial = b""

    def push(self, pcm: bytes, form: PcmFormat) -> bytes:
        """Return the output that is ready, as little-endian int16 at 16 kHz; may be empty."""
        if form != self._format:
            self._partial, self._format = b"", form
        pcm = self._partial + pcm
        whole = len(pcm) - len(pcm) % form.frame_bytes
        self._partial = pcm[whole:]
        return _int16(self._resampler.push(_mono(pcm[:whole], form), form.rate_hz))

    def flush(self) -> bytes:
        """Return the rest of the output. Resets the stream."""
        self._partial, self._format = b"", None
        return _int16(self._resampler.flush())


def _mono(pcm: bytes, form: PcmFormat) -> NDArray[np.float32]:
    """Return the mean of the channels, (n,) float32 within -1 to 1."""
    if form.width_bytes == 1:
        samples = np.frombuffer(pcm, np.uint8).astype(np.float32) / 128 - 1
    else:
        # The two upper bytes of each sample, as `_WIDTHS` says.
        upper = np.frombuffer(pcm, np.uint8).reshape(-1, form.width_bytes)[:, -2:]
        samples = np.ascontiguousarray(upper).view("<i2")[:, 0].astype(np.float32) / 32_768
    mono: NDArray[np.float32] = samples.reshape(-1, form.channels).mean(axis=1, dtype=np.float32)
    return mono


def _int16(samples: NDArray[np.float32]) -> bytes:
    return bytes((samples * 32_768).round().clip(-32_768, 32_767).astype("<i2").tobytes())
