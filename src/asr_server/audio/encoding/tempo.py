"""Speed without change of pitch, by FFmpeg's `atempo`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np

from asr_server.audio.encoding.sentences import Samples
from asr_server.core.audio import SPEECH_RATE

BLOCK_SAMPLES = 960
_TIME_BASE = Fraction(1, SPEECH_RATE)


class Tempo:
    """Blocks in, of `BLOCK_SAMPLES` but for the last; faster or slower samples out."""

    def __init__(self, speed: float) -> None:
        self._graph = av.filter.Graph()
        source = self._graph.add_abuffer(sample_rate=SPEECH_RATE, format="flt", layout="mono", time_base=_TIME_BASE)
        # One filter leaves samples out beyond 2, and goes no lower than 0.5.
        filters = (
            [self._graph.add("atempo", f"{speed**0.5:.9f}") for _ in range(2)]
            if not 0.5 <= speed <= 2
            else [self._graph.add("atempo", f"{speed:.9f}")]
        )
        self._graph.link_nodes(source, *filters, self._graph.add("abuffersink")).configure()
        self._pushed = 0

    def push(self, block: Samples) -> Iterator[Samples]:
        """What is ready."""
        frame = av.AudioFrame.from_ndarray(block[np.newaxis], format="flt", layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = SPEECH_RATE, _TIME_BASE, self._pushed
        self._pushed += len(block)
        self._graph.push(frame)
        return self._ready()

    def finish(self) -> Iterator[Samples]:
        """The rest."""
        self._graph.push(None)
        return self._ready()

    def _ready(self) -> Iterator[Samples]:
        while True:
            try:
                frame = self._graph.pull()
            except (BlockingIOError, EOFError):  # it waits for more, or has come to the end
                return
            assert isinstance(frame, av.AudioFrame)
            yield frame.to_ndarray().reshape(-1)
