"""Loudness by ITU-R BS.1770, and the gain that brings a request to the loudness that it asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.sentences import Samples, SentenceFrame

# Tables 1 and 2 of BS.1770-5: numerators and denominators of the two filters of the K-weighting, for 48 kHz.
_FILTERS = (
    ((1.53512485958697, -2.69169618940638, 1.19839281085285), (1.0, -1.69065929318241, 0.73248077421585)),
    ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)),
)
_FILTER_RATE = 48_000
_OFFSET_LU = -0.691
# The gating block of BS.1770 has 400 ms. In two seconds from the first speech on, there is usually so much of it.
_MEASURED_FRAMES, _MAX_WAITING_FRAMES = 40, 200
_PEAK = 10 ** (-1 / 20)  # lossy codecs overshoot a little
_MAX_GAIN_DB = 20.0  # more would raise noise rather than speech


def loudness_lufs(samples: NDArray[np.float32]) -> float:
    """Return the loudness of mono samples at `SPEECH_RATE`, as one block without gates; minus infinity for silence.

    The filters are applied to the spectrum, so that their response is that of 48 kHz.
    """
    spectrum = np.fft.rfft(samples)
    delay = np.exp(-2j * np.pi * np.fft.rfftfreq(len(samples), 1 / SPEECH_RATE) / _FILTER_RATE)
    for numerator, denominator in _FILTERS:
        spectrum *= np.polyval(numerator[::-1], delay) / np.polyval(denominator[::-1], delay)
    power = float(np.mean(np.fft.irfft(spectrum, len(samples)) ** 2))
    return _OFFSET_LU + 10 * math.log10(power) if power > 0 else -math.inf


class LoudnessNormalizer:
    """Applies one gain to all, from the first 400 ms of speech. A peak that would be over -1 dBFS lowers it from there
    on."""

    def __init__(self, target_lufs: float) -> None:
        self._target_lufs = target_lufs
        self._gain: float | None = None
        self._waiting: list[SentenceFrame] = []  # from the first speech on, until the gain is known
        self._delayed: Samples | None = None  # the last frame, which ends with the gain of the next one

    def push(self, frame: SentenceFrame) -> Iterator[Samples]:
        """Yield the frames that are ready."""
        if self._gain is not None:
            yield from self._scaled(frame.samples)
        elif frame.is_speech or self._waiting:
            self._waiting.append(frame)
            speech_frames = sum(waiting.is_speech for waiting in self._waiting)
            if speech_frames == _MEASURED_FRAMES or len(self._waiting) == _MAX_WAITING_FRAMES:
                yield from self._begin()
        else:
            yield frame.samples

    def finish(self) -> Iterator[Samples]:
        """Yield the rest."""
        if self._waiting:
            yield from self._begin()
        if self._delayed is not None:
            yield self._delayed * np.float32(self._gain)

    def _begin(self) -> Iterator[Samples]:
        speech = np.concatenate([frame.samples for frame in self._waiting if frame.is_speech])
        gain_db = min(_MAX_GAIN_DB, self._target_lufs - loudness_lufs(speech))
        self._gain = 10 ** (gain_db / 20)
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            yield from self._scaled(frame.samples)

    def _scaled(self, samples: Samples) -> Iterator[Samples]:
        assert self._gain is not None
        peak = float(np.abs(samples).max())
        gain = min(self._gain, _PEAK / peak) if peak else self._gain
        if self._delayed is not None:
            yield self._delayed * np.linspace(self._gain, gain, len(self._delayed), dtype=np.float32)
        self._delayed, self._gain = samples.copy(), gain
