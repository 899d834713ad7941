"""What the engine benchmarks share: an engine with forced answers, driven directly, and audio to feed it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np

from asr_server.core import settings
from asr_server.engine import capabilities, plan
from asr_server.engine.protocol import Hypothesis, Utterance
from asr_server.engine.qwen.engine import QwenEngine
from asr_server.engine.row import Row
from asr_server.scheduling.ports import RowDone, RowFailed
from E2Etest import recordings

RATE = 16_000
TOKENS_PER_S = 3.5  # of speech, as the released models write


def speech(seconds: float) -> np.ndarray:
    """float32 (n,) of speech without long pauses."""
    return np.resize(recordings.samples(), int(seconds * RATE)).astype(np.float32) / 32768


def forced_tokens(samples: int) -> int:
    """How many tokens an answer gets, whatever the weights say."""
    return max(1, round(samples / RATE * TOKENS_PER_S))


@contextmanager
def forced_answers() -> Iterator[None]:
    """Random weights neither end nor make sense: every answer has as many tokens as speech of its length would have."""
    note = Row.note
    with (
        mock.patch("asr_server.engine.qwen.engine.token_budget", forced_tokens),
        mock.patch("asr_server.engine.row.loop", return_value=0),
        mock.patch.object(Row, "note", lambda row, tokens, logprobs, _: note(row, tokens, logprobs, frozenset())),
    ):
        yield


def load(model_id: str, *, max_batch: int, dtype: str = "auto", quantize: str = "none") -> QwenEngine:
    """A loaded engine."""
    engine = QwenEngine(
        plan.resolve(
            settings.load(model_id=model_id, max_batch=max_batch, dtype=dtype, quantize=quantize), capabilities.probe()
        )
    )
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
