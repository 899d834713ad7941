"""Recognises the words of known recordings by matched filtering, so that an answer depends on the audio that arrived.

Each word of a known recording is a short waveform. A word is recognised where the normalised cross-correlation of the
audio with its waveform is high. Resampling, codecs and volume change the correlation little; audio that is lost,
doubled, reordered or garbled changes the words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from asr_server.engine.protocol import Utterance
from asr_server.text import scripts
from E2Etest.drive import recordings

RATE = 4_000
Samples = NDArray[np.float64]
# A word correlates above 0.95 with itself, wherever the decimation begins, and below 0.36 with any other.
_THRESHOLD = 0.7
# Below this share of a word's own energy there is nothing to correlate with: silence.
_LEAST_ENERGY = 1e-4
_TEXTS: dict[bytes, str] = {}  # by the digest of the audio


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A word and the sound of it: float64 (n,) at `RATE`."""

    text: str
    sound: Samples


def text_of(utterance: Utterance) -> str:
    """Return the answer of the fake engine. Fails if the audio is not as the engine protocol guarantees."""
    audio = utterance.audio
    assert audio.dtype == np.float32
    assert audio.ndim == 1
    assert np.isfinite(audio).all()
    assert np.abs(audio).max(initial=0.0) <= 1.0
    key = hashlib.blake2b(audio.tobytes()).digest()  # most tests send the same recording
    if key not in _TEXTS:
        _TEXTS[key] = scripts.join(_spotted(audio)) if len(audio) >= 1_000 else ""
    return _TEXTS[key]


def _spotted(audio: NDArray[np.float32]) -> list[str]:
    """The words in `audio` (float32 (n,), 16 kHz), in the order of their beginnings. No two overlap by much: voiced
    sounds resemble each other, and the best match wins."""
    sound = _decimated(audio.astype(np.float64))
    # One transform length for all words: the correlations are circular and still right in their first samples.
    length = next_fast_len(len(sound), real=True)
    spectrum = rfft(sound, length)
    candidates = [
        (correlation, start, word)
        for word in _known_words()
        if len(word.sound) <= len(sound)
        for correlation, start in _matches(irfft(spectrum * _conjugate(word, length), length), sound, word.sound)
    ]
    taken, found = np.zeros(len(sound), bool), list[tuple[int, str]]()
    for _, start, word in sorted(candidates, key=lambda candidate: -candidate[0]):
        place = slice(start, start + len(word.sound))
        if taken[place].mean() < 0.2:
            taken[place] = True
            found.append((start, word.text))
    return [text for _, text in sorted(found)]


@cache
def _known_words() -> tuple[Word, ...]:
    """The words of the bundled recording and of a Chinese one."""
    clip = next(clip for clip in recordings.clips() if clip.language == "Chinese")
    pcm, _ = soundfile.read(clip.path, dtype="int16")
    return _split(recordings.samples(), recordings.sample()[1].split()) + _split(pcm, tuple(clip.text))


def _decimated(audio: Samples) -> Samples:
    # scipy.signal can do this too, and takes a second to import, in each process that runs tests.
    return np.asarray(soxr.resample(audio, 16_000, RATE))


def _split(pcm: NDArray[np.int16], texts: Sequence[str]) -> tuple[Word, ...]:
    """Equal parts of what is loud: where a word really begins does not matter here."""
    sound = _decimated(pcm.astype(np.float64) / 32_768)
    loud = np.flatnonzero(np.abs(sound) > 0.1 * np.abs(sound).max())
    margin = RATE // 20
    borders = np.linspace(loud[0] + margin, loud[-1] - margin, len(texts) + 1).astype(int)
    return tuple(Word(text, sound[start:end]) for text, (start, end) in zip(texts, pairwise(borders), strict=True))


def _matches(products: Samples, sound: Samples, word: Samples) -> list[tuple[float, int]]:
    """Maxima of the correlation above the threshold, and where they are; no two within half a word's length."""
    own = float(np.square(word).sum())
    energy = np.maximum(_energy(sound, word), _LEAST_ENERGY * own)
    correlation = products[: len(energy)] / np.sqrt(energy * own)
    matches = list[tuple[float, int]]()
    while correlation.max() > _THRESHOLD:
        at = int(correlation.argmax())
        matches.append((float(correlation[at]), at))
        correlation[max(0, at - len(word) // 2) : at + len(word) // 2] = -1.0
    return matches


@lru_cache(maxsize=200)
def _conjugate(word: Word, length: int) -> NDArray[np.complex128]:
    return rfft(word.sound, length).conj()


def _energy(sound: Samples, word: Samples) -> Samples:
    """The energy of each part of `sound` that is as long as `word`."""
    sums = np.concatenate([[0.0], np.cumsum(np.square(sound))])
    return sums[len(word) :] - sums[: -len(word)]
