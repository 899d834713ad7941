"""Speed without change of pitch, by FFmpeg's `atempo`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np

from asr_server.audio.encoding.sentences import Samples
from asr_server.core.audio import SPEECH_RATE

# The filter gives out blocks as long as those that it gets, and where they begin changes its samples a little.
_BLOCK_SAMPLES = SPEECH_RATE // 50
_PADDING_SAMPLES = SPEECH_RATE // 2  # more than the filters hold back
_TIME_BASE = Fraction(1, SPEECH_RATE)


class Tempo:
    """Samples in, faster or slower ones out: in all, as many as were pushed, divided by `speed`."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._graph = av.filter.Graph()
        self._graph.threads = 1  # the process may start none
        source = self._graph.add_abuffer(sample_rate=SPEECH_RATE, format="flt", layout="mono", time_base=_TIME_BASE)
        # One filter leaves samples out beyond 2, and goes no lower than 0.5.
        factors = [speed] if 0.5 <= speed <= 2 else [speed**0.5] * 2
        filters = [self._graph.add("atempo", f"{factor:.9f}") for factor in factors]
        self._graph.link_nodes(source, *filters, self._graph.add("abuffersink")).configure()
        self._rest = np.zeros(0, np.float32)  # less than a block
        self._pushed = self._ready = 0

    def push(self, samples: Samples) -> Iterator[Samples]:
        """Return the samples that are ready."""
        self._pushed += len(samples)
        yield from self._filtered(samples)

    def finish(self) -> Iterator[Samples]:
        """The rest."""
        missing = round(self._pushed / self._speed) - self._ready
        for block in self._filtered(np.zeros(_PADDING_SAMPLES, np.float32)):
            yield block[: max(0, missing)]
            missing -= len(block)

    def _filtered(self, samples: Samples) -> Iterator[Samples]:
        samples = np.concatenate((self._rest, samples))
        until = len(samples) - len(samples) % _BLOCK_SAMPLES
        self._rest = samples[until:].copy()
        for begin in range(0, until, _BLOCK_SAMPLES):
            block = samples[np.newaxis, begin : begin + _BLOCK_SAMPLES]
            frame = av.AudioFrame.from_ndarray(block, format="flt", layout="mono")
            frame.sample_rate, frame.time_base = SPEECH_RATE, _TIME_BASE
            self._graph.push(frame)
            yield from self._pulled()

    def _pulled(self) -> Iterator[Samples]:
        while True:
            try:
                frame = self._graph.pull()
            except BlockingIOError:  # it waits for more
                return
            assert isinstance(frame, av.AudioFrame)
            self._ready += frame.samples
            yield frame.to_ndarray().reshape(-1).astype(np.float32, copy=False)
