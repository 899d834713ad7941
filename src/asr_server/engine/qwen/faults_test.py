"""Faults injected into one loaded model: memory that runs out at odd places, numbers that are none. Who is hurt?"""

import numpy as np
import pytest
import torch

from asr_server.core.errors import EngineOutOfMemory, TranscriptionFailed
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen import loading
from asr_server.engine.qwen.engine import QwenEngine
from asr_server.scheduling.ports import RowDelta

pytestmark = pytest.mark.torch


@pytest.fixture
def engine():
    made = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ()))
    made.load()
    return made


def _ended(engine, utterances):
    """Outcomes by key of utterances admitted together."""
    for key, utterance in enumerate(utterances):
        engine.admit(key, utterance)
    found = {}
    for _ in range(400):
        found |= {outcome.key: outcome for outcome in engine.step() if not isinstance(outcome, RowDelta)}
        if len(found) == len(utterances):
            break
    return [found[key] for key in range(len(utterances))]


def test_a_row_that_needs_more_than_the_whole_arena_is_refused(speech):
    """As it comes, and before its audio is encoded; with less context it is heard."""
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 2, ()))
    engine.load()
    with pytest.raises(EngineOutOfMemory, match="KV_BUDGET_MB"):
        engine.admit(1, Utterance(speech, context="kitchen lights " * 800))
    (outcome,) = _ended(engine, [Utterance(speech)])
    assert outcome.value.text


def test_a_session_that_cannot_be_kept_costs_nobody_an_answer(engine, clips, alone, monkeypatch):
    """Memory runs out where a partial leaves its windows for the next one: all rows end with their own ids."""

    def copy(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine._runtime.decoder.arena, "copy", copy)
    asked = [Utterance(clip, session=str(key)) for key, clip in enumerate(clips[:4])]
    assert [outcome.value.ids for outcome in _ended(engine, asked)] == [one.ids for one in alone[:4]]
    assert len(engine._runtime.prefix_cache) == 0
    assert engine.free_slots == 4


def test_numbers_out_of_range_fail_their_row_and_leave_nothing_behind(engine, speech, clips, alone):
    """A row whose logits are no numbers is told as failed, and the next rows in all slots have their own ids."""
    lost = Utterance(np.full(len(speech), np.nan, np.float32))
    outcomes = _ended(engine, [Utterance(speech), lost, Utterance(clips[1]), lost])
    assert [isinstance(outcomes[key].error, TranscriptionFailed) for key in (1, 3)] == [True, True]
    assert [outcomes[key].value.ids for key in (0, 2)] == [alone[0].ids, alone[1].ids]
    after = _ended(engine, [Utterance(clip) for clip in clips[:4]])
    assert [outcome.value.ids for outcome in after] == [one.ids for one in alone[:4]]


@pytest.mark.parametrize("temperature", [1e-3, 1e-45, 5e-324])
def test_hardly_any_temperature_is_greedy_and_disturbs_nobody(engine, speech, alone, temperature):
    """The least temperature that a number can say gives the greedy ids, and fails no pass."""
    outcomes = _ended(engine, [Utterance(speech), Utterance(speech, temperature=temperature)])
    assert [outcome.value.ids for outcome in outcomes] == [alone[0].ids] * 2


def test_a_model_that_does_not_fit_says_so(monkeypatch):
    """Memory that runs out while loading is no fault of the audio that waited for it; nothing is half loaded."""

    def full(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(loading, "load", full)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ()))
    with pytest.raises(EngineOutOfMemory, match="model"):
        engine.load()
    assert not engine.loaded
