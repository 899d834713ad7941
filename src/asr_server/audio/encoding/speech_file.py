"""The file of one request, from the samples of its sentences to bytes. What arrives in which piece changes no byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from asr_server.audio.encoding.formats import EncodingOptions
from asr_server.audio.encoding.loudness import LoudnessNormalizer
from asr_server.audio.encoding.sentences import Frame, Samples, SentenceJoiner
from asr_server.audio.encoding.tempo import Tempo
from asr_server.audio.encoding.writers import writer


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
        """The rest. Nothing can be pushed afterwards."""
        frames = self._joiner.push(np.zeros(0, np.float32), ends_sentence=True)
        return self._encoded(frames, is_last=True) + self._writer.finish()

    def _encoded(self, frames: Iterator[Frame], *, is_last: bool) -> bytes:
        samples = _joined(self._leveled(frames, is_last=is_last))
        if self._tempo is not None:
            samples = _joined(self._tempo.push(samples))
            if is_last:
                samples = _joined([samples, *self._tempo.finish()])
        return self._writer.write(samples)

    def _leveled(self, frames: Iterator[Frame], *, is_last: bool) -> Iterator[Samples]:
        for frame in frames:
            if self._normalizer is None:
                yield frame.samples
            else:
                yield from self._normalizer.push(frame)
        if is_last and self._normalizer is not None:
            yield from self._normalizer.finish()


def _joined(blocks: Iterable[Samples]) -> Samples:
    return np.concatenate([np.zeros(0, np.float32), *blocks])
