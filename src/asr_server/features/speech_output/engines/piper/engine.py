"""The engine `piper`: speaks sentences in one voice, in short pieces of work. The row with the least audio is next.

Rows are not computed together. A voice's vocoder is bound by arithmetic, so four rows in one call take the time of four
calls; and the end of a row would depend on the row next to it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

from asr_server.core import idle
from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import AsrError, ModelUnavailable, SpeechFailed
from asr_server.features.speech_output.engines.espeak import package, voices
from asr_server.features.speech_output.engines.espeak.process import EspeakProcess
from asr_server.features.speech_output.engines.espeak.script_runs import script_runs
from asr_server.features.speech_output.engines.espeak.worker import Clause
from asr_server.features.speech_output.engines.piper.network import PiperNetwork
from asr_server.features.speech_output.engines.piper.voice import END, PAD, START, PiperVoice
from asr_server.features.speech_output.engines.protocol import (
    Sentence,
    SpeechEngine,
    SpeechFinish,
    SpokenSentence,
)
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed
from asr_server.text.scripts import normal_form

# More rows than a few callers have under way: a new row has the least audio, so it is next. A row has at most 4 MB.
_SLOTS = 16
# The samples of a sentence without anything that the voice can say.
_SILENCE = np.zeros(SPEECH_RATE // 10, np.float32)

Samples = NDArray[np.float32]
# About 15 s of speech. The work grows with the square of its length, and the engine speaks nothing else meanwhile.
MAX_PHONEMES = 200
# eSpeak NG's marks of a change of language, such as "(en)".
_LANGUAGE_MARK = re.compile(r"\([a-z-]{2,12}\)")


@dataclass(slots=True, eq=False)
class _Row:
    """A sentence on its way."""

    work: Iterator[Samples]  # each item is a bounded piece of work, and may be empty
    urgent: bool  # it goes before rows that are not
    samples: int = 0  # how many were handed out


class PiperEngine(SpeechEngine):
    """One voice. Its memory is that of the network, which is loaded once."""

    def __init__(self, voice: PiperVoice, model_id: str) -> None:
        self._voice, self.model_id = voice, model_id
        self._network: PiperNetwork | None = None
        self.process: EspeakProcess | None = None
        self._rows: dict[int, _Row] = {}
        self.traits = voice.traits

    @property
    def loaded(self) -> bool:
        return self._network is not None

    @property
    def free_slots(self) -> int:
        return max(0, _SLOTS - len(self._rows))

    def load(self) -> None:
        self.unload()
        self._network = PiperNetwork(self._voice)
        idle.trim_heap()

    def unload(self) -> None:
        self._network, process, self.process = None, self.process, None
        self._rows.clear()
        if process is not None:
            process.end()
        idle.trim_heap()

    def admit(self, key: int, item: Sentence, urgent: bool = False) -> None:
        self._rows[key] = _Row(self._spoken(item), urgent)

    def drop(self, key: int) -> None:
        if self._rows.pop(key, None) is not None and not self._rows:
            idle.trim_heap()  # a sentence leaves free blocks of twice the size of the weights

    def step(self, begin_s: float | None = None) -> Iterable[Outcome]:
        if not self._rows:
            return
        # The row whose listener has the least audio, so that each of several listeners soon hears the first words.
        key, row = min(self._rows.items(), key=lambda entry: (not entry[1].urgent, entry[1].samples))
        try:
            samples = next(row.work, None)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            self.drop(key)
            reason = (
                error if isinstance(error, AsrError) else SpeechFailed("The voice failed on a sentence of this text.")
            )
            yield RowFailed(key, reason)
            return
        if samples is None:
            self.drop(key)
            yield RowDone(key, SpokenSentence(SpeechFinish.END, row.samples))
        elif len(samples):
            row.samples += len(samples)
            yield RowDelta(key, samples)

    def _spoken(self, sentence: Sentence) -> Iterator[Samples]:
        """Yield the samples at `SPEECH_RATE`, and an empty array after a piece of work that makes none."""
        network, voice = self._network, self._voice
        if network is None:
            raise ModelUnavailable("The voice is not loaded.")
        clauses = []
        for language, text in script_runs(sentence.text, sentence.language):
            clauses += self._phonemes(text, language)
            yield _SILENCE[:0]
        found = utterances(clauses, frozenset(voice.ids))
        if not found:
            yield _SILENCE
        speaker = voice.speakers[sentence.voice]
        resampler = soxr.ResampleStream(voice.rate, SPEECH_RATE, 1, dtype="float32", quality="HQ")
        for number, phonemes in enumerate(found):
            frames = network.frames(phonemes, speaker, sentence.speed, (sentence.seed, number))
            for samples in network.samples(frames, speaker):
                yield resampler.resample_chunk(samples).clip(-1.0, 1.0)
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True).clip(-1.0, 1.0)

    def _phonemes(self, text: str, language: str) -> list[Clause]:
        """Return the clauses of a text in one script, as phonemes, or as letters for a voice that reads letters."""
        voice = self._voice
        if not voice.espeak_voice:
            return [Clause(text.lower(), "")]
        library = package.find()
        if library is None:
            raise ModelUnavailable("eSpeak NG was removed while the server ran.")
        if self.process is not None and not self.process.is_running:
            self.process.end()
            self.process = None
        self.process = self.process or EspeakProcess(library)
        own = language in voice.traits.languages
        return self.process.clauses(text, voice.espeak_voice if own else voices.languages(library.data)[language])


def utterances(clauses: Iterable[Clause], known: Collection[str]) -> list[list[str]]:
    """Return utterances of phonemes that a voice knows, made of whole clauses if these are short enough.

    Utterances that have no letters, only punctuation, are left out.
    """
    found: list[list[str]] = [[]]
    for clause in clauses:
        signs = normal_form("NFD", _LANGUAGE_MARK.sub("", clause.phonemes).strip() + clause.ending)
        phonemes = [sign for sign in signs if sign in known and sign not in (START, END, PAD)]
        for piece in _pieces(phonemes):
            if found[-1] and len(found[-1]) + 1 + len(piece) > MAX_PHONEMES:
                found.append([])
            found[-1] += [" ", *piece] if found[-1] else piece
    return [one for one in found if any(unicodedata.category(sign).startswith("L") for sign in one)]


def _pieces(phonemes: list[str]) -> Iterable[list[str]]:
    """Yield a clause in pieces if it is too long, cut between two words if it has several."""
    while len(phonemes) > MAX_PHONEMES:
        spaces = [place for place in range(1, MAX_PHONEMES) if phonemes[place] == " "]
        cut = spaces[-1] if spaces else MAX_PHONEMES
        yield phonemes[:cut]
        phonemes = phonemes[cut:]
    yield phonemes
