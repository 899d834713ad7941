"""A synthesised clip with the times of its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE

NEUTRAL_RATE = 165

Wave = NDArray[np.float32]


class SynthesisUnavailable(RuntimeError):
    """A synthesiser or a voice is not installed."""


class WordsNotPlaced(ValueError):
    """The synthesiser's report does not match the words of the text; speak another text instead."""


@dataclass(frozen=True)
class SpokenWord:
    """A word and its samples [start, end) of the clip."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Speech:
    """A clip: float32 mono at 16 kHz in -1..1, shape (samples,), and its words in order."""

    samples: Wave
    words: tuple[SpokenWord, ...]


def at_16k(samples: Wave, rate: int) -> Wave:
    """`samples` at `rate` Hz, resampled to 16 kHz."""
    from scipy.signal import resample_poly  # takes a second to import, and tests import this module for its types

    common = gcd(rate, SAMPLE_RATE)
    return resample_poly(samples, SAMPLE_RATE // common, rate // common).astype(np.float32)


def between(starts: Sequence[float], end: float, words: Sequence[str], rate: int) -> tuple[SpokenWord, ...]:
    """Words that begin at `starts` (in samples at `rate`), each ending where the next begins, the last at `end`."""
    boundaries = [int(position * SAMPLE_RATE / rate) for position in (*starts, end)]
    return tuple(SpokenWord(word, a, b) for word, a, b in zip(words, boundaries, boundaries[1:], strict=False))
