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


@pytest.fixture
def short_of_memory(engine, monkeypatch):
    """Memory runs out once, when the third of the next buffers is made."""

    def arrange():
        cache, made = engine._runtime.decoder.cache, []

        def empty(slots, tokens, original=cache._empty):
            made.append((slots, tokens))
            if len(made) == 3:
                raise torch.OutOfMemoryError
            return original(slots, tokens)

        monkeypatch.setattr(cache, "_empty", empty)

    return arrange


def test_the_first_buffers_are_made_anew_where_they_could_not_all_be_made(engine, speech, alone, short_of_memory):
    """Some as planned and some empty are not taken for all: the same rows, tried in halves, have their own ids."""
    short_of_memory()
    for _ in range(2):
        outcomes = _ended(engine, [Utterance(speech)] * 2)
        assert [outcome.value.ids for outcome in outcomes] == [alone[0].ids] * 2


def test_rows_that_are_seated_outlive_buffers_that_could_not_all_be_made(
    engine, make_engine, run, speech, clips, alone, short_of_memory
):
    """A long row joins and memory runs out between two layers: who sits there ends well, and so does what comes."""
    long = Utterance(speech, context="kitchen lights " * 800)
    engine.admit(9, Utterance(clips[2]))
    list(engine.step())
    short_of_memory()
    engine.admit(10, long)
    done = {}
    for _ in range(400):
        done |= {outcome.key: outcome for outcome in engine.step() if not isinstance(outcome, RowDelta)}
        if len(done) == 2:
            break
    assert done[9].value.ids == alone[2].ids
    assert isinstance(done[10].error, EngineOutOfMemory)
    after = _ended(engine, [*(Utterance(clip) for clip in clips[:4]), long])
    (expected,) = run(make_engine(1), [long])
    assert [outcome.value.ids for outcome in after] == [*(one.ids for one in alone[:4]), expected.ids]


def test_a_session_that_cannot_be_kept_costs_nobody_an_answer(engine, clips, alone, monkeypatch):
    """Memory runs out where a partial leaves its windows for the next one: all rows end with their own ids."""

    def read(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine._runtime.decoder.cache, "read", read)
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
