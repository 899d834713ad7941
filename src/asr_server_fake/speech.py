"""The speech engine `fake`: a tone for each voice, with scripted delays and faults. For tests; uses no model.

`SPEECH=fake` and `SPEECH_CLONE_MODEL=fake` start it and nothing else does. `script.py` describes scripts.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import AsrError, EngineOutOfMemory, SpeechFailed
from asr_server.features.speech_output.engines.protocol import (
    FAKE,
    OPENAI_VOICES,
    Sentence,
    SpeechEngine,
    SpeechFinish,
    SpeechTraits,
    SpokenSentence,
    Voice,
    VoiceSample,
)
from asr_server.schedule.model import Outcome, RowDelta, RowDone, RowFailed
from asr_server_fake.script import FakeScript, Scripted, SpeechRule, strike

BLOCK_SAMPLES = SPEECH_RATE // 5
_SLOTS = 4
_SAMPLES_PER_CHAR = SPEECH_RATE // 20
_SHORTEST_SAMPLES = SPEECH_RATE // 10
_TONES_HZ = {"low": 150.0, "middle": 300.0, "high": 600.0}
_QUIET, _LOUD = 0.1, 0.4


@dataclass(slots=True, eq=False)
class _Row:
    """An admitted sentence."""

    rule: SpeechRule  # the rule that decides its answer
    samples: NDArray[np.float32]  # all samples of the sentence
    given: int = 0  # how many samples were handed out
    struck: bool = False  # its fault has happened


class FakeSpeechEngine(Scripted, SpeechEngine):
    """A scripted speech engine: one block of samples a step for every row.

    Each voice is a tone of its own frequency. A voice sample is imitated by a tone of its strongest frequency.
    Instructions make the tone louder, and the seed shifts its phase. A character takes 50 ms. `script`: a script in
    memory, or the path of a file.
    """

    model_id = FAKE
    traits = SpeechTraits(
        voices=tuple(Voice(name, f"a tone of {hz:g} Hz") for name, hz in _TONES_HZ.items()),
        openai_voices=dict(zip(OPENAI_VOICES, cycle(_TONES_HZ), strict=False)),
        languages=("de", "en", "fr", "ja", "zh"),
        imitates=True,
        follows_instructions=True,
        first_guess_speed=50.0,
    )

    def __init__(self, script: FakeScript | Path | None = None) -> None:
        super().__init__(script or FakeScript())
        self._rows: dict[int, _Row] = {}

    @property
    def free_slots(self) -> int:
        return _SLOTS - len(self._rows)

    def load(self) -> None:
        """Take as long as the script says. Raises `ModelUnavailable` if the script says so."""
        self.run_load(self.script().speech, f"SPEECH={FAKE}")

    def unload(self) -> None:
        """Forget every row."""
        self.loaded = False
        self._rows.clear()

    def admit(self, key: int, item: Sentence, urgent: bool = False) -> None:
        """Admit a row. Raises the error that the script demands."""
        assert self.loaded, "admit() before load()"
        script = self.script().speech  # first, since a new script resets the counts
        self.calls += 1
        rule = self.first(script.rules, lambda rule: rule.matches(item.text, self.calls)) or SpeechRule()
        row = _Row(rule, _spoken(item, rule))
        if rule.at == "admission" and (error := _strike(row)) is not None:
            raise error
        self._rows[key] = row

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Give every row a block of samples. Raises if the script breaks the step."""
        if not self._rows:
            return
        time.sleep(self.script().speech.step_s)
        for key, row in list(self._rows.items()):
            due = row.rule.at == "step" and row.given >= row.rule.after_blocks * BLOCK_SAMPLES
            if due and not row.struck and (error := _strike(row)) is not None:
                del self._rows[key]
                yield RowFailed(key, error)
                continue
            block = row.samples[row.given : row.given + BLOCK_SAMPLES]
            row.given += len(block)
            yield RowDelta(key, block)
            if row.given == len(row.samples):
                del self._rows[key]
                yield RowDone(key, SpokenSentence(SpeechFinish(row.rule.finish), row.given))

    def drop(self, key: int) -> None:
        self._rows.pop(key, None)


def _spoken(item: Sentence, rule: SpeechRule) -> NDArray[np.float32]:
    count = max(_SHORTEST_SAMPLES, len(item.text) * _SAMPLES_PER_CHAR)
    if rule.finish == "budget":
        count //= 2
    frequency_hz = _TONES_HZ[item.voice] if item.sample is None else strongest_hz(item.sample)
    phase = zlib.crc32(f"{item.seed} {item.language} {item.text}".encode())
    turns = frequency_hz * np.arange(count) / SPEECH_RATE
    amplitude = _LOUD if item.instructions else _QUIET
    return (amplitude * np.sin(2 * np.pi * turns + phase % 100 / 16)).astype(np.float32)


def strongest_hz(sample: VoiceSample) -> float:
    """Return the frequency that has the most power in the sample."""
    power = np.abs(np.fft.rfft(sample.audio * np.hanning(len(sample.audio))))
    return float(power.argmax() * SPEECH_RATE / len(sample.audio))


def _strike(row: _Row) -> AsrError | None:
    """Return the error of the row, or None if it continues."""
    row.struck = True
    no_memory = EngineOutOfMemory("No memory is left for this sentence.")
    return strike(row.rule, SpeechFailed("The engine failed on this sentence."), no_memory)
