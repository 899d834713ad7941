"""The rig of the engine benchmarks: an engine with forced answers, driven directly, and audio to feed it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from unittest import mock

import numpy as np

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import capabilities
from asr_server.engine.protocol import Hypothesis, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.row import Row
from asr_server.schedule.model import RowDone, RowFailed
from E2Etest.drive import recordings

RATE = 16_000
SPAN_S = 30
TOKENS_PER_S = 3.5  # of speech, as the released models write


def speech(seconds: float) -> np.ndarray:
    """float32 (n,) of speech without long pauses."""
    return np.resize(recordings.samples(), int(seconds * RATE)).astype(np.float32) / 32768


def forced_tokens(samples: int) -> int:
    """Return how many tokens an answer gets, whatever the weights say."""
    return max(1, round(samples / RATE * TOKENS_PER_S))


@contextmanager
def forced_answers() -> Iterator[None]:
    """Random weights neither end nor make sense: every answer ends behind as many tokens as speech of its length has.

    Rests on `QwenEngine.admit` and `Row.note` alone, so that it works with older commits of the engine too.
    """
    admit, note, lengths = QwenEngine.admit, Row.note, dict[int, int]()

    def admit_forced(engine: QwenEngine, key: int, item: Utterance, *urgent: bool) -> None:
        lengths[key] = forced_tokens(len(item.audio))
        admit(engine, key, item, *urgent)

    def note_forced(row: Row, tokens: Sequence[int], logprobs: Sequence[float], _: Set[int]) -> None:
        left = lengths[row.key] - len(row.ids)
        note(row, tokens[:left], logprobs[:left], frozenset())
        row.ended, row.looping = len(row.ids) >= lengths[row.key], 0

    with (
        mock.patch.object(QwenEngine, "admit", admit_forced),
        mock.patch.object(Row, "note", note_forced),
    ):
        yield


def load(model_id: str, **chosen: object) -> QwenEngine:
    """A loaded engine; `chosen` are settings, the others those of the environment."""
    engine = QwenEngine(feature_list.resolve(settings.load(model_id=model_id, **chosen), capabilities.probe()))
    engine.load()
    return engine


def run(engine: QwenEngine, utterances: Sequence[Utterance]) -> tuple[list[Hypothesis], list[float]]:
    """All utterances, admitted as they fit; hypotheses and the seconds after the start at which each was done."""
    waiting, done, began = list(enumerate(utterances)), {}, time.perf_counter()
    while len(done) < len(utterances):
        while waiting and engine.free_slots:
            engine.admit(*waiting.pop(0))
        for outcome in engine.step():
            if isinstance(outcome, RowFailed):
                raise outcome.error
            if isinstance(outcome, RowDone):
                done[outcome.key] = (outcome.value, time.perf_counter() - began)
    ordered = [done[i] for i in range(len(utterances))]
    return [hypothesis for hypothesis, _ in ordered], [at for _, at in ordered]


def percentiles(groups: Iterable[Iterable[float]]) -> dict[str, float]:
    """The median and the 95th percentile of all values."""
    values = list(itertools.chain.from_iterable(groups))
    return {f"p{p}": round(float(np.percentile(values, p)), 1) for p in (50, 95)} if values else {}
