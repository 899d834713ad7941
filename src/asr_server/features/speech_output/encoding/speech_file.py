"""The file of one request, from the samples of its sentences to bytes. The division into pieces changes no byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.formats import EncodingOptions
from asr_server.features.speech_output.encoding.loudness import LoudnessNormalizer
from asr_server.features.speech_output.encoding.sentences import Samples, SentenceFrame, SentenceJoiner
from asr_server.features.speech_output.encoding.writers import writer

# The filter gives out blocks as long as those that it gets, and where they begin changes its samples a little.
_BLOCK_SAMPLES = SPEECH_RATE // 50
_PADDING_SAMPLES = SPEECH_RATE // 2  # more than the filters hold back
_TIME_BASE = Fraction(1, SPEECH_RATE)


class SpeechFile:
    """Samples are float32 (n,), mono, at `SPEECH_RATE`."""

    def __init__(self, options: EncodingOptions) -> None:
        self._joiner = SentenceJoiner(trim=options.trim, pause_ms=options.pause_ms)
        self._normalizer = None if options.loudness_lufs is None else LoudnessNormalizer(options.loudness_lufs)
        self._tempo = None if options.speed == 1 else Tempo(options.speed)
        self._writer = writer(options.format, options.chapters)

    @property
    def samples(self) -> int:
        """Return how many samples were given to the encoder."""
        return self._writer.samples

    def push(self, samples: Samples, *, ends_sentence: bool) -> bytes:
        """Return what is ready of the file. Raises ValueError if a sample is not finite."""
        if not np.isfinite(samples).all():
            raise ValueError("samples that are not finite")
        return self._encoded(self._joiner.push(samples, ends_sentence=ends_sentence), is_last=False)

    def finish(self) -> bytes:
        """Return the rest. Nothing can be pushed afterwards."""
        frames = self._joiner.push(np.zeros(0, np.float32), ends_sentence=True)
        return self._encoded(frames, is_last=True) + self._writer.finish()

    def _encoded(self, frames: Iterator[SentenceFrame], *, is_last: bool) -> bytes:
        samples = _joined(self._leveled(frames, is_last=is_last))
        if self._tempo is not None:
            samples = _joined(self._tempo.push(samples))
            if is_last:
                samples = _joined([samples, *self._tempo.finish()])
        return self._writer.write(samples)

    def _leveled(self, frames: Iterator[SentenceFrame], *, is_last: bool) -> Iterator[Samples]:
        for frame in frames:
            if self._normalizer is None:
                yield frame.samples
            else:
                yield from self._normalizer.push(frame)
        if is_last and self._normalizer is not None:
            yield from self._normalizer.finish()


def _joined(blocks: Iterable[Samples]) -> Samples:
    return np.concatenate([np.zeros(0, np.float32), *blocks])


class Tempo:
    """Changes the speed and not the pitch, by FFmpeg's `atempo`: in all, as many samples as were pushed, by `speed`."""

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
        """Yield the rest."""
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
