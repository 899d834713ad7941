"""Turns the samples of a request's sentences into a file. Dividing the samples into other pieces changes no byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

import av
import numpy as np

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.formats import EncodingOptions
from asr_server.features.speech_output.encoding.writers import Samples, writer

FRAME_SAMPLES = SPEECH_RATE // 100
# A frame is silent if it is 40 dB below the loudest frame so far, or below -60 dBFS. The weakest consonants are about
# 30 dB below the loudest vowels (J. P. Olive et al., Acoustics of American English Speech, 1993).
_RELATIVE_LEVEL, _LOWEST_LEVEL = 10 ** (-40 / 20), 10 ** (-60 / 20)
_KEPT_FRAMES = 3
_MAX_HELD_FRAMES = 1_000  # a longer pause within a sentence is cut to 10 s, because it is held back until it ends


class SentenceJoiner:
    """Removes the silence around each sentence, and puts a pause between two."""

    def __init__(self, *, trim: bool, pause_ms: int) -> None:
        self._trim = trim
        self._pause_samples = SPEECH_RATE * pause_ms // 1000
        self._rest = np.zeros(0, np.float32)  # less than a frame
        self._held: list[Samples] = []  # frames of silence that may be trimmed
        self._has_begun = False  # this sentence
        self._follows_another = False
        self._loudest = 0.0

    def push(self, samples: Samples, *, ends_sentence: bool) -> Iterator[Samples]:
        """Yield the next samples, except silence that may turn out to be the sentence's end."""
        samples = np.concatenate((self._rest, samples))
        until = len(samples) if ends_sentence else len(samples) - len(samples) % FRAME_SAMPLES
        self._rest = samples[until:].copy()
        for begin in range(0, until, FRAME_SAMPLES):
            yield from self._frames(samples[begin : min(begin + FRAME_SAMPLES, until)])
        if ends_sentence:
            yield from self._end()

    def _frames(self, samples: Samples) -> Iterator[Samples]:
        if not self._is_speech(samples) and self._trim:
            if not self._has_begun:
                self._held = [*self._held[1 - _KEPT_FRAMES :], samples.copy()]
            elif len(self._held) < _MAX_HELD_FRAMES:
                self._held.append(samples.copy())
            return
        if not self._has_begun and self._follows_another:
            yield np.zeros(self._pause_samples, np.float32)
        self._has_begun = True
        yield from self._held
        self._held = []
        yield samples

    def _end(self) -> Iterator[Samples]:
        if self._has_begun:
            yield from self._held[:_KEPT_FRAMES]
            self._follows_another = True
        self._has_begun, self._held = False, []

    def _is_speech(self, samples: Samples) -> bool:
        level = float(np.sqrt(np.dot(samples, samples) / len(samples)))
        self._loudest = max(self._loudest, level)
        return level > max(_LOWEST_LEVEL, self._loudest * _RELATIVE_LEVEL)


# The filter returns blocks of the same length as its input blocks. Where the blocks begin changes its samples a little.
_BLOCK_SAMPLES = SPEECH_RATE // 50
_PADDING_SAMPLES = SPEECH_RATE // 2  # more than the filters hold back
_TIME_BASE = Fraction(1, SPEECH_RATE)


class SpeechFile:
    """The file of one request. Samples are float32 (n,), mono, at `SPEECH_RATE`."""

    def __init__(self, options: EncodingOptions) -> None:
        self._joiner = SentenceJoiner(trim=options.trim, pause_ms=options.pause_ms)
        self._tempo = None if options.speed == 1 else Tempo(options.speed)
        self._writer = writer(options.format, options.chapters)

    @property
    def samples(self) -> int:
        return self._writer.samples

    def push(self, samples: Samples, *, ends_sentence: bool) -> bytes:
        """Return the bytes of the file that are ready. Raises ValueError if a sample is not finite."""
        if not np.isfinite(samples).all():
            raise ValueError("samples that are not finite")
        return self._encoded(self._joiner.push(samples, ends_sentence=ends_sentence), is_last=False)

    def finish(self) -> bytes:
        """Return the rest. Nothing can be pushed afterwards."""
        rest = self._joiner.push(np.zeros(0, np.float32), ends_sentence=True)
        return self._encoded(rest, is_last=True) + self._writer.finish()

    def _encoded(self, blocks: Iterator[Samples], *, is_last: bool) -> bytes:
        samples = _joined(blocks)
        if self._tempo is not None:
            samples = _joined(self._tempo.push(samples))
            if is_last:
                samples = _joined([samples, *self._tempo.finish()])
        return self._writer.write(samples)


def _joined(blocks: Iterable[Samples]) -> Samples:
    return np.concatenate([np.zeros(0, np.float32), *blocks])


class Tempo:
    """Changes the speed but not the pitch, by FFmpeg's `atempo`. It yields the number of pushed samples / `speed`."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._graph = av.filter.Graph()
        self._graph.threads = 1  # the process may start no threads
        source = self._graph.add_abuffer(sample_rate=SPEECH_RATE, format="flt", layout="mono", time_base=_TIME_BASE)
        # A single filter leaves samples out above 2, and goes no lower than 0.5.
        factors = [speed] if 0.5 <= speed <= 2 else [speed**0.5] * 2
        filters = [self._graph.add("atempo", f"{factor:.9f}") for factor in factors]
        self._graph.link_nodes(source, *filters, self._graph.add("abuffersink")).configure()
        self._rest = np.zeros(0, np.float32)  # less than a block
        self._pushed = self._ready = 0

    def push(self, samples: Samples) -> Iterator[Samples]:
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
            except BlockingIOError:  # the filter waits for more samples
                return
            assert isinstance(frame, av.AudioFrame)
            self._ready += frame.samples
            yield frame.to_ndarray().reshape(-1).astype(np.float32, copy=False)
