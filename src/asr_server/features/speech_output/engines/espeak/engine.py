"""The engine `espeak`: one sentence at a time, which takes about a hundredth of its duration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import soxr
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import ModelUnavailable, SpeechFailed
from asr_server.features.speech_output.engines.espeak import package, voices, worker
from asr_server.features.speech_output.engines.espeak.package import ESPEAK
from asr_server.features.speech_output.engines.espeak.process import EspeakProcess
from asr_server.features.speech_output.engines.espeak.script_runs import script_runs
from asr_server.features.speech_output.engines.protocol import (
    Sentence,
    SpeechEngine,
    SpeechFinish,
    SpokenSentence,
)
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed

# The library's blocks are 60 ms. The first one goes out at once, and the others are joined to this length.
_DELTA_SAMPLES = SPEECH_RATE // 2


class EspeakEngine(SpeechEngine):
    """An engine with one row in its batch, so that the most urgent sentence is always next."""

    model_id = ESPEAK

    def __init__(self) -> None:
        library = package.find()
        assert library is not None, "the plan has looked"
        self._library = library
        self.process: EspeakProcess | None = None
        self._row: tuple[int, Sentence] | None = None
        self._languages = voices.languages(library.data)
        self.traits = voices.traits(library.data)

    @property
    def loaded(self) -> bool:
        return self.process is not None and self.process.is_running

    @property
    def free_slots(self) -> int:
        return int(self._row is None)

    def load(self) -> None:
        self.unload()
        self.process = EspeakProcess(self._library)

    def unload(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.end()

    def admit(self, key: int, item: Sentence, urgent: bool = False) -> None:
        self._row = key, item

    def drop(self, key: int) -> None:
        if self._row is not None and self._row[0] == key:
            self._row = None

    def step(self, begin_s: float | None = None) -> Iterable[Outcome]:
        if self._row is None:
            return
        (key, sentence), self._row, count = self._row, None, 0
        try:
            for samples in _joined(self._spoken(sentence)):
                count += len(samples)
                yield RowDelta(key, samples)
        except SpeechFailed as error:
            yield RowFailed(key, error)
        else:
            yield RowDone(key, SpokenSentence(SpeechFinish.END, count))

    def _spoken(self, sentence: Sentence) -> Iterator[NDArray[np.float32]]:
        """Yield the samples at `SPEECH_RATE`, in [-1, 1]."""
        if self.process is None:
            raise ModelUnavailable("eSpeak NG is not loaded.")
        resampler = soxr.ResampleStream(worker.RATE, SPEECH_RATE, 1, dtype="float32", quality="HQ")
        for language, text in script_runs(sentence.text, sentence.language):
            voice = f"{self._languages[language]}+{sentence.voice}"
            for block in self.process.speak(worker.SpeakRequest(text, voice)):
                yield resampler.resample_chunk(block.astype(np.float32) / 32768).clip(-1.0, 1.0)
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True).clip(-1.0, 1.0)


def _joined(blocks: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield the first block, then blocks of `_DELTA_SAMPLES` or more, then the rest."""
    held: list[NDArray[np.float32]] = []
    size, least = 0, 1
    for block in blocks:
        held.append(block)
        size += len(block)
        if size >= least:
            yield np.concatenate(held)
            held, size, least = [], 0, _DELTA_SAMPLES
    if size:
        yield np.concatenate(held)
