"""Recordings of several channels, put together from recordings of real people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from E2Etest.drive.recordings import Clip, real_clips, waveform


def people(*kinds: str) -> list[list[Clip]]:
    """Return the clips of each kind of `real_clips`; a kind is one person."""
    return [real_clips(kind) for kind in kinds]


def conversation(speakers: Sequence[Sequence[Clip]], *, pause_s: float = 0.4, noise_db: float = -65.0) -> np.ndarray:
    """Return float32 (channels, n): each speaker on a channel, in turns. With a negative pause, turns overlap.

    No two turns of the same speaker overlap. Each channel has noise of its own.
    """
    turns = [
        (channel, waveform(own[turn].path))
        for turn in range(max(map(len, speakers)))
        for channel, own in enumerate(speakers)
        if turn < len(own)
    ]
    longest = sum(len(audio) + round((1 + abs(pause_s)) * SAMPLE_RATE) for _, audio in turns)
    track = np.zeros((len(speakers), longest), np.float32)
    at, free = SAMPLE_RATE // 2, [0] * len(speakers)
    for channel, audio in turns:
        at = max(at, free[channel])
        track[channel, at : at + len(audio)] += audio
        free[channel] = at + len(audio)
        at += len(audio) + round(pause_s * SAMPLE_RATE)
    return noisy(track[:, : max(free) + SAMPLE_RATE // 2], noise_db)


def noisy(track: np.ndarray, level_db: float) -> np.ndarray:
    """Return the track with noise of that level, different on each channel."""
    noise = np.random.default_rng(1).standard_normal(track.shape)
    return (track + 10 ** (level_db / 20) * noise).astype(np.float32)


def late(track: np.ndarray, delay_ms: float) -> np.ndarray:
    """Return (n,) samples that are `delay_ms` later, with the same length."""
    delay = round(delay_ms * SAMPLE_RATE / 1000)
    return np.pad(track, (delay, 0))[: len(track)].astype(np.float32)


def with_crosstalk(track: np.ndarray, level_db: float, delay_ms: float = 0.0) -> np.ndarray:
    """Return (2, n): each channel also has the other one, fainter by `level_db` and later."""
    gain = np.float32(10 ** (level_db / 20))
    return np.stack([track[0] + gain * late(track[1], delay_ms), track[1] + gain * late(track[0], delay_ms)])


def through_telephone(track: np.ndarray) -> np.ndarray:
    """Return (n,) samples as through a telephone: 8 kHz, 300 to 3400 Hz, in the 8 bits of mu-law."""
    spectrum, hz = np.fft.rfft(track), np.fft.rfftfreq(len(track), 1 / SAMPLE_RATE)
    spectrum[(hz < 300) | (hz > 3400)] = 0
    narrow = np.clip(np.fft.irfft(spectrum, len(track)), -1, 1)
    coded = np.round(127 * np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256)) / 127
    return (np.sign(coded) * np.expm1(np.abs(coded) * np.log(256)) / 255).astype(np.float32)
