"""An engine and an aligner that answer by a function of the audio, one word a step: no model, no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from asr_server.core.errors import AsrError
from asr_server.engine.aligning import AligningEngine
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import (
    AlignedPiece,
    AlignItem,
    Alignment,
    EngineInfo,
    Finish,
    Hypothesis,
    Tokens,
    Utterance,
)
from asr_server.scheduling.ports import Outcome, RowDelta, RowDone, RowFailed
from E2Etest.contract.word_spotter import known_words, spot


@dataclass
class Behaviour:
    """What the engine does; a test may change it while the server runs. Times in seconds.

    `answer`: the words of an utterance. `load_s`, `step_s`: how long a load and a step take. `before_step`: called
    before each step with the utterances in the batch. `load_error`, `aligner_error`: what the next loads raise.
    """

    answer: Callable[[Utterance], list[str]] = field(default_factory=lambda: words_of)
    load_s: float = 0.0
    step_s: float = 0.0
    before_step: Callable[[Sequence[Utterance]], None] = lambda utterances: None
    load_error: Exception | None = None
    aligner_error: Exception | None = None


def words_of(utterance: Utterance) -> list[str]:
    """The words of known recordings in the audio."""
    return [word.text for word in spot(utterance.audio, known_words())]


class Vocabulary:
    """Token ids of words, in the order in which they were first used."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._words: list[str] = []

    def ids(self, words: Sequence[str]) -> tuple[int, ...]:
        """An id for each word."""
        return tuple(self._id(word) for word in words)

    def words(self, ids: Sequence[int]) -> list[str]:
        """The words of these ids."""
        return [self._words[number] for number in ids]

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


@dataclass
class _Row:
    utterance: Utterance
    words: list[str]
    given: int = 0


class FakeEngine:
    """Implements `engine.protocol.Engine`."""

    def __init__(self, plan: Plan, behaviour: Behaviour) -> None:
        self._plan, self._behaviour = plan, behaviour
        self._rows: dict[int, _Row] = {}
        self._vocabulary = Vocabulary()
        self._loaded = False

    @property
    def info(self) -> EngineInfo:
        """Its names."""
        slots = self._plan.max_batch if self._loaded else 0
        return EngineInfo("fake", self._plan.model_id, self._plan.device, self._plan.dtype, slots=slots)

    @property
    def loaded(self) -> bool:
        """Whether `load` was called."""
        return self._loaded

    @property
    def room(self) -> int:
        """Places left in the batch."""
        return self._plan.max_batch - len(self._rows)

    def load(self) -> None:
        """Take `load_s`. Raises `load_error`."""
        time.sleep(self._behaviour.load_s)
        if self._behaviour.load_error is not None:
            raise self._behaviour.load_error
        self._loaded = True

    def unload(self) -> None:
        """Be as before `load`."""
        self._loaded = False

    def admit(self, key: int, item: Utterance) -> None:
        """Take a row; its audio must be what the contract says."""
        audio = item.audio
        assert audio.dtype == np.float32
        assert audio.ndim == 1
        assert np.isfinite(audio).all()
        assert np.abs(audio).max(initial=0.0) <= 1.0
        prefix = self._vocabulary.words(item.prefix)
        words = self._behaviour.answer(item)
        self._rows[key] = _Row(item, prefix + words[len(prefix) :])

    def step(self) -> Iterator[Outcome]:
        """One more word for each row; then, rows that have them all are done."""
        time.sleep(self._behaviour.step_s)
        try:
            self._behaviour.before_step([row.utterance for row in self._rows.values()])
        except AsrError as error:
            for key in list(self._rows):
                del self._rows[key]
                yield RowFailed(key, error)
            return
        for key, row in list(self._rows.items()):
            if row.given < len(row.words):
                row.given += 1
                word = row.words[row.given - 1]
                text = (word if row.given == 1 else f" {word}") if row.utterance.stream else ""
                yield RowDelta(key, Tokens(self._vocabulary.ids([word]), (-0.1,), text))
            else:
                del self._rows[key]
                yield RowDone(key, self._hypothesis(row))

    def drop(self, key: int) -> None:
        """Forget a row."""
        self._rows.pop(key, None)

    def _hypothesis(self, row: _Row) -> Hypothesis:
        words = row.words
        offsets = tuple(len(" ".join(words[: n + 1])) for n in range(len(words)))
        return Hypothesis(
            text=" ".join(words),
            language=row.utterance.language or ("English" if words else ""),
            ids=self._vocabulary.ids(words),
            logprobs=(-0.1,) * len(words),
            finish=Finish.END,
            audio_tokens=len(row.utterance.audio) // 1_280,
            prompt_tokens=len(row.utterance.audio) // 1_280 + 10,
            passes=len(words) + 1,
            no_speech_prob=None if row.utterance.language else 0.01,
            offsets=offsets,
            pieces=tuple((word if n == 0 else f" {word}").encode() for n, word in enumerate(words)),
        )


class FakeAligner:
    """Implements `engine.protocol.Aligner`: words of equal length."""

    def __init__(self, plan: Plan, behaviour: Behaviour) -> None:
        self._id = plan.aligner_id
        self._behaviour = behaviour
        self._loaded = False

    @property
    def aligner_id(self) -> str:
        """The name it was asked for."""
        return self._id

    @property
    def loaded(self) -> bool:
        """Whether `load` was called."""
        return self._loaded

    def locate(self) -> None:
        """There is nothing to find."""

    def load(self) -> None:
        """Be loaded. Raises `aligner_error`."""
        if self._behaviour.aligner_error is not None:
            raise self._behaviour.aligner_error
        self._loaded = True

    def unload(self) -> None:
        """Be as before `load`."""
        self._loaded = False

    def cost(self, item: AlignItem) -> int:
        """A token for each 80 ms."""
        return len(item.audio) // 1_280 + 1

    def align(self, items: Sequence[AlignItem]) -> list[Alignment | AsrError]:
        """The words, one behind the other, over the whole audio."""
        return [self._alignment(item) for item in items]

    def _alignment(self, item: AlignItem) -> Alignment:
        words = item.text.split()
        borders = [int(len(item.audio) / 16 * n / max(1, len(words))) for n in range(len(words) + 1)]
        return Alignment(
            tuple(
                AlignedPiece(word, start, end)
                for word, start, end in zip(words, borders[:-1], borders[1:], strict=True)
            )
        )


def aligning(plan: Plan, behaviour: Behaviour, idle_timeout_s: float) -> AligningEngine:
    """Both side by side, as the server has them."""
    engine = FakeEngine(plan, behaviour)
    return AligningEngine(engine, FakeAligner(plan, behaviour), pass_tokens=1_024, idle_timeout_s=idle_timeout_s)
