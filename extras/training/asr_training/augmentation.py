"""Augmentation: reverberation, timbre, telephone band, level and background noise.

All waves are float32 of shape (samples,) at 16 kHz; all randomness comes from the generator that is passed in.
"""

from __future__ import annotations

import random

import numpy as np
from scipy.signal import butter, fftconvolve, lfilter, sosfilt

from asr_server.core.audio import SAMPLE_RATE
from asr_training.speech import Wave


def augment(samples: Wave, rng: random.Random) -> Wave:
    """Return speech with random reverberation, timbre, level and background; the peak stays within 1."""
    for change, share in ((_reverb, 0.3), (_timbre, 0.4), (_telephone, 0.05)):
        if rng.random() < share:
            samples = change(samples, rng)
    samples = samples * np.float32(10 ** (rng.uniform(-20, 3) / 20))
    if rng.random() < 0.75:
        samples = _with_noise(samples, rng, snr_db=rng.uniform(10, 45))
    largest = float(np.abs(samples).max(initial=0.0))
    return (samples / max(1.0, largest)).astype(np.float32)


def change_speed(samples: Wave, factor: float) -> Wave:
    """Speech `factor` times faster, with higher pitch and formants."""
    positions = np.arange(0, len(samples) - 1, factor)
    return np.interp(positions, np.arange(len(samples)), samples).astype(np.float32)


def background(count: int, rng: random.Random) -> Wave:
    """`count` samples without speech: digital silence, noise of some colour, hum or beeps."""
    kind = rng.random()
    if kind < 0.2:
        return np.zeros(count, np.float32)
    level = 10 ** rng.uniform(-4.5, -1.0)
    sound = _noise(count, rng) if kind < 0.8 else _tones(count, rng)
    return np.clip(sound * level, -1, 1).astype(np.float32)


def _numpy(rng: random.Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(64))


def _noise(count: int, rng: random.Random) -> Wave:
    """Noise of unit power: white, dull (a few samples averaged) or brownish."""
    white = _numpy(rng).standard_normal(count).astype(np.float32)
    colour = rng.random()
    if colour < 0.4:
        return white
    pole = rng.uniform(0.3, 0.9) if colour < 0.75 else rng.uniform(0.9, 0.995)
    dull = lfilter([1.0], [1.0, -pole], white)
    return (dull / max(1e-9, float(np.sqrt((dull**2).mean())))).astype(np.float32)


def _tones(count: int, rng: random.Random) -> Wave:
    """Mains hum or beeps switched on and off."""
    time_s = np.arange(count) / SAMPLE_RATE
    if rng.random() < 0.5:
        base = rng.choice((50, 60))
        overtones = [np.sin(2 * np.pi * base * k * time_s) / k for k in (1, 2, 3, 5)]
        return np.sum(overtones, axis=0).astype(np.float32)
    period_s = rng.uniform(0.3, 2.0)
    sounding = (time_s % period_s) < rng.uniform(0.1, 0.8) * period_s
    return (np.sin(2 * np.pi * rng.uniform(200, 3000) * time_s) * sounding).astype(np.float32)


def _with_noise(samples: Wave, rng: random.Random, snr_db: float) -> Wave:
    power = float((samples**2).mean()) / 10 ** (snr_db / 10)
    return samples + _noise(len(samples), rng) * np.float32(np.sqrt(power))


def _reverb(samples: Wave, rng: random.Random) -> Wave:
    """A direct sound and a tail that decays within 12 to 190 ms."""
    count = rng.randint(200, 3000)
    tail = _numpy(rng).standard_normal(count) * np.exp(-np.arange(count) / (count / 5))
    tail[0] = rng.uniform(2, 8)
    tail /= np.sqrt((tail**2).sum())
    return fftconvolve(samples, tail)[: len(samples)].astype(np.float32)


def _timbre(samples: Wave, rng: random.Random) -> Wave:
    """More or less treble: a one-zero filter."""
    return lfilter([1.0, rng.uniform(-0.7, 0.7)], [1.0], samples).astype(np.float32)


def _telephone(samples: Wave, rng: random.Random) -> Wave:
    band = butter(4, (rng.uniform(80, 300), rng.uniform(3000, 3800)), "bandpass", fs=SAMPLE_RATE, output="sos")
    return sosfilt(band, samples).astype(np.float32)
