"""Which rows of a batch a step seats, runs and fails, in the compiled library, or both where they differ."""

import json

import numpy as np
import pytest

from asr_server import demo
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import EngineOutOfMemory, TranscriptionFailed
from asr_server.engine.conftest import ends, loaded_qwen
from asr_server.engine.feature import OPENVINO, TORCH
from asr_server.engine.memory import Capacity, PrefillPolicy
from asr_server.engine.openvino.compiled_text import PAGE, CompiledText, page_count
from asr_server.engine.protocol import Finish, Utterance
from asr_server.engine.qwen_asr import compiled_decoder, compiled_model, torch_model
from asr_server.engine.qwen_asr.compiled_decoder import CompiledDecoder
from asr_server.engine.qwen_asr.decoder import ArenaDecoder
from asr_server.engine.qwen_asr.engine import RowLimit
from asr_server.schedule.model import RowDone, RowFailed

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

DECODERS = {OPENVINO: CompiledDecoder, TORCH: ArenaDecoder}


@pytest.fixture
def engine():
    return loaded_qwen(rows=8, runtime=OPENVINO)


@pytest.fixture(params=DECODERS)
def library(request):
    return request.param


def _wrap(monkeypatch, owner, name, before):
    """Call `before` with what a method is given, before the method."""
    method = getattr(owner, name)

    def wrapped(self, *given, **named):
        before(self, *given)
        return method(self, *given, **named)

    monkeypatch.setattr(owner, name, wrapped)


def test_the_limit_of_rows_falls_with_each_failure_and_recovers():
    """Eight rows decode again after some hundred passes."""
    limit = RowLimit(8)
    for rows in (4, 2, 1, 1):
        limit.ran_out(limit.rows)
        assert limit.rows == rows
    for _ in range(64 * 7):
        limit.succeeded()
    assert limit.rows == 8


def test_memory_that_runs_out_while_decoding_halves_the_batch_and_loses_nothing(engine, clips, alone, monkeypatch):
    """The younger rows start again, not all at once; each row has the ids that it has alone, and no delta twice."""
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, limit_s: 100_000)  # all begin in one step
    tried = []

    def short(decoder, *_):
        tried.append(len(decoder.rows))
        if len(decoder.rows) > 2:
            raise MemoryError

    _wrap(monkeypatch, CompiledDecoder, "step", short)
    found, deltas = ends(engine, *(Utterance(clip, stream=True) for clip in clips))
    assert [one.value.ids for one in found] == deltas == [answer.ids for answer in alone]
    assert tried[:3] == [6, 3, 1]


def test_a_pass_that_fails_at_its_end_has_moved_no_row(engine, clips, alone, monkeypatch):
    """The rows that stay seated repeat the pass as if it had not been."""
    faults, known_tokens = [MemoryError()], compiled_decoder.known_tokens

    def known(decoding, *given):
        if faults and len(decoding) == len(clips) and all(row.ids for row in decoding):
            raise faults.pop()
        return known_tokens(decoding, *given)

    monkeypatch.setattr(compiled_decoder, "known_tokens", known)
    found, _ = ends(engine, *map(Utterance, clips))
    assert not faults
    for one, expected in zip(found, alone, strict=True):
        assert one.value.ids == expected.ids
        assert one.value.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


@pytest.mark.parametrize(("place", "at_fault"), [("step", 0), ("step", 3), ("step", 5), ("prefill", 3)])
def test_a_row_that_breaks_a_pass_fails_alone(engine, clips, alone, monkeypatch, place, at_fault):
    """The other rows get the ids of a run without it and no delta twice, and all slots are free afterwards."""

    def broken(decoder, *given):
        if place == "step" and any(row.key == at_fault and len(row.ids) > 2 for row in decoder.rows):
            raise ZeroDivisionError
        if place == "prefill" and any(row.key == at_fault for row, _ in given[0]):
            raise MemoryError

    _wrap(monkeypatch, CompiledDecoder, place, broken)
    found, deltas = ends(engine, *(Utterance(clip, stream=True) for clip in clips))
    failure = found.pop(at_fault)
    assert isinstance(failure, RowFailed)
    assert type(failure.error) is (TranscriptionFailed if place == "step" else EngineOutOfMemory)
    assert isinstance(failure.error.__cause__, ZeroDivisionError if place == "step" else MemoryError)
    expected = [answer.ids for n, answer in enumerate(alone) if n != at_fault]
    assert [one.value.ids for one in found] == expected
    assert [ids for n, ids in enumerate(deltas) if n != at_fault] == expected
    assert engine.free_slots == 8


def test_numbers_out_of_range_fail_their_row_and_leave_nothing_behind(library, speech, clips, alone):
    """The next rows in all slots have their own ids: a mask does not hide such numbers."""
    engine = loaded_qwen(runtime=library)
    lost = Utterance(np.full(len(speech), np.nan, np.float32))
    found, _ = ends(engine, Utterance(speech), lost, Utterance(clips[1]), lost)
    assert [type(found[key].error) for key in (1, 3)] == [TranscriptionFailed] * 2
    assert [found[key].value.ids for key in (0, 2)] == [alone[0].ids, alone[1].ids]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrefillPolicy, "tokens", lambda policy, limit_s: 120)
        for key in range(2):
            engine.admit(key, Utterance(np.full(12 * SAMPLE_RATE, np.nan, np.float32)))
        list(engine.step())
    assert sorted(row.length > 60 for row in engine.runtime.decoder.rows) == [False, True]
    for key in range(2):
        engine.drop(key)
    found, _ = ends(engine, *map(Utterance, clips[:4]))
    assert [one.value.ids for one in found] == [answer.ids for answer in alone[:4]]


def test_answers_longer_than_expected_take_more_room_and_give_it_back(library, clips, alone, monkeypatch):
    """A row that has room for one token at first gets the ids that it has alone, also with drafts."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    monkeypatch.setattr("asr_server.engine.memory.ROW_TOKENS", 160)
    engine, grown = loaded_qwen(runtime=library, rows=8, budget_mb=2), []
    _wrap(monkeypatch, DECODERS[library], "make_room", lambda decoder, row: grown.append(row.reserved))
    decoder, drafts = engine.runtime.decoder, [(*answer.ids[:3], 1) for answer in alone]
    utterances = [Utterance(clip, draft=draft) for clip, draft in zip(clips, drafts, strict=True)]
    waiting, found = list(enumerate(utterances)), {}
    while len(found) < len(clips):
        while waiting and engine.free_slots:
            engine.admit(*waiting.pop(0))
        found |= {one.key: one.value for one in engine.step() if isinstance(one, RowDone)}
    for key, expected in enumerate(alone):
        assert found[key].ids == expected.ids
        assert found[key].logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert len(set(grown)) > len(clips)
    assert decoder.fits(engine.runtime.capacity.tokens - PAGE)


def test_a_row_without_room_to_grow_begins_again_later(library, run, make_engine, clips, monkeypatch):
    """Two rows fit with what is expected of them, and not with what they say."""
    two = [Utterance(clips[3][: int(14.5 * SAMPLE_RATE)]), Utterance(clips[3][8000 : int(15 * SAMPLE_RATE)])]
    expected = [run(make_engine(1), [utterance])[0] for utterance in two]
    # A row that grows takes room for 64 tokens, of which there are 96: in pages of 32, or anywhere.
    begun = [answer.prompt_tokens + answer.audio_tokens + 1 for answer in expected]
    room = 96 + (PAGE * sum(map(page_count, begun)) if library == OPENVINO else sum(begun))
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    for model in (compiled_model, torch_model):
        monkeypatch.setattr(model, "capacity_now", lambda plan, size, *_: Capacity(2, room * size, 0, size))
    engine, restarts = loaded_qwen(runtime=library, rows=2), []
    _wrap(monkeypatch, DECODERS[library], "drop", lambda decoder, row: restarts.append(not row.finished))
    assert [answer.ids for answer in run(engine, two)] == [answer.ids for answer in expected]
    assert any(restarts)


def test_urgent_rows_are_prefilled_first(engine, clips, monkeypatch):
    """The number of rows that wait in the batch does not matter. While they wait, only urgent rows may join."""
    prefilled = []
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, limit_s: 20)
    _wrap(monkeypatch, CompiledDecoder, "prefill", lambda _, parts: prefilled.append([(r.key, n) for r, n in parts]))
    for key in range(2):
        engine.admit(key, Utterance(clips[key]))
    assert (engine.free_slots, engine.urgent_slots) == (0, 6)
    engine.admit(2, Utterance(clips[2]), urgent=True)
    assert (engine.free_slots, engine.urgent_slots) == (0, 0)
    while len(engine.runtime.decoder.decoding) < 3:
        list(engine.step(0.25))
    assert list(dict.fromkeys(key for parts in prefilled for key, _ in parts)) == [2, 0, 1]
    assert all(sum(count for _, count in parts) <= 20 for parts in prefilled)


@pytest.fixture
def say(make_engine, run, monkeypatch):
    """Return a function that gives the answer for which the model chooses these ids, one by one."""
    engine = make_engine(1)  # a load makes passes too
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, limit_s: 100_000)  # each pass takes an id

    def say(clip, ids):
        said, compute = iter(ids), CompiledText.__call__

        def spoken(model, embeds, spans, places):
            following = compute(model, embeds, spans, places)
            return following._replace(tokens=np.array([next(said)] * len(places)))

        monkeypatch.setattr(CompiledText, "__call__", spoken)
        return run(engine, [Utterance(clip)])[0]

    return say


def test_a_loop_is_stopped_and_one_turn_kept(say, clips):
    """A row whose ids have repeated for 48 tokens ends within eight more, says so, and keeps one turn of the loop."""
    start, turn = [11, 12, 13], [21, 22, 23, 24]
    hypothesis = say(clips[3], start + turn * 40)
    assert hypothesis.finish is Finish.LOOP
    assert hypothesis.ids == (*start, *turn)
    assert len(hypothesis.logprobs) == len(hypothesis.ids)
    assert 0 <= hypothesis.passes - len(start) - 48 < 8


@pytest.mark.parametrize("place", [0, 1])
def test_every_end_token_of_the_checkpoint_ends_an_answer(say, speech, place):
    """The model says one of them after its third token."""
    end_ids = json.loads((demo.checkpoint_path() / "generation_config.json").read_text())["eos_token_id"]
    assert len(end_ids) == 2
    hypothesis = say(speech, [1, 2, 3, end_ids[place], 4, 5])
    assert (hypothesis.finish, hypothesis.ids) == (Finish.END, (1, 2, 3))
