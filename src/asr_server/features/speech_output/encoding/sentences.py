"""Sentences one after the other: without the silence around each, and with a pause between two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE

Samples = NDArray[np.float32]

FRAME_SAMPLES = SPEECH_RATE // 100
# Silence is what is 40 dB below the loudest frame so far, and everything below -60 dBFS. The weakest consonants are
# about 30 dB below the loudest vowels (J. P. Olive et al., Acoustics of American English Speech, 1993).
_RELATIVE_LEVEL, _LOWEST_LEVEL = 10 ** (-40 / 20), 10 ** (-60 / 20)
_KEPT_FRAMES = 3
_MAX_HELD_FRAMES = 1_000  # a longer pause within a sentence is cut to 10 s, because it is held back until it ends


class SentenceFrame(NamedTuple):
    """A part of a sentence."""

    samples: Samples  # at most 10 ms; only the last frame of a sentence is shorter
    is_speech: bool


class SentenceJoiner:
    """Sentences in, the frames of all of them out."""

    def __init__(self, *, trim: bool, pause_ms: int) -> None:
        self._trim = trim
        self._pause_samples = SPEECH_RATE * pause_ms // 1000
        self._rest = np.zeros(0, np.float32)  # less than a frame
        self._held: list[Samples] = []  # frames of silence that may be trimmed
        self._has_begun = False  # this sentence
        self._follows_another = False
        self._loudest = 0.0

    def push(self, samples: Samples, *, ends_sentence: bool) -> Iterator[SentenceFrame]:
        """Yield the frames of the next samples, except silence that may turn out to be the sentence's end."""
        samples = np.concatenate((self._rest, samples))
        until = len(samples) if ends_sentence else len(samples) - len(samples) % FRAME_SAMPLES
        self._rest = samples[until:].copy()
        for begin in range(0, until, FRAME_SAMPLES):
            yield from self._frames(samples[begin : min(begin + FRAME_SAMPLES, until)])
        if ends_sentence:
            yield from self._end()

    def _frames(self, samples: Samples) -> Iterator[SentenceFrame]:
        is_speech = self._is_speech(samples)
        if self._trim and not is_speech:
            if not self._has_begun:
                self._held = [*self._held[1 - _KEPT_FRAMES :], samples.copy()]
            elif len(self._held) < _MAX_HELD_FRAMES:
                self._held.append(samples.copy())
            return
        if not self._has_begun and self._follows_another:
            yield from self._pause()
        self._has_begun = True
        yield from self._silence(self._held)
        yield SentenceFrame(samples, is_speech)

    def _end(self) -> Iterator[SentenceFrame]:
        if self._has_begun:
            yield from self._silence(self._held[:_KEPT_FRAMES])
            self._follows_another = True
        self._has_begun, self._held = False, []

    def _silence(self, held: list[Samples]) -> Iterator[SentenceFrame]:
        self._held = []
        return (SentenceFrame(samples, is_speech=False) for samples in held)

    def _pause(self) -> Iterator[SentenceFrame]:
        for begin in range(0, self._pause_samples, FRAME_SAMPLES):
            yield SentenceFrame(np.zeros(min(FRAME_SAMPLES, self._pause_samples - begin), np.float32), is_speech=False)

    def _is_speech(self, samples: Samples) -> bool:
        level = float(np.sqrt(np.dot(samples, samples) / len(samples)))
        self._loudest = max(self._loudest, level)
        return level > max(_LOWEST_LEVEL, self._loudest * _RELATIVE_LEVEL)
