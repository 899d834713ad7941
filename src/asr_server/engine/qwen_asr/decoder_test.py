"""Rows of one arena that get longer than was planned for."""

from types import SimpleNamespace

import pytest
import torch

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.feature import Plan
from asr_server.engine.memory import Capacity
from asr_server.engine.protocol import Finish, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.rows import RowInput
from asr_server.engine.torch.passes import Arena, padded_query, rounded

pytestmark = pytest.mark.torch

DEVICE = torch.device("cpu")


def test_answers_longer_than_expected_grow_and_change_no_id(run, clips, alone, monkeypatch):
    """A row that has room for one token at first gets the ids that it has alone."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    monkeypatch.setattr("asr_server.engine.memory.ROW_TOKENS", 160)
    monkeypatch.setattr("asr_server.engine.torch.slots.rounded", lambda tokens: -(-tokens // 4) * 4)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 8, 2, ()))
    engine.load()
    divisions, arena = set(), engine._runtime.decoder.arena

    def step(original=engine._runtime.step, **given):
        original(**given)
        divisions.add((arena.slots, arena.columns))

    monkeypatch.setattr(engine._runtime, "step", step)
    drafted = [Utterance(clip, draft=(*answer.ids[:3], 1)) for clip, answer in zip(clips, alone, strict=True)]
    for got, expected in zip(run(engine, drafted), alone, strict=True):
        assert got.ids == expected.ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert len(divisions) > 2


def test_who_has_no_room_to_grow_begins_again_later(run, make_engine, clips, monkeypatch):
    """Two rows that fit with what is expected of them, and not with what they say."""
    two = [Utterance(clips[3][: int(14.5 * SAMPLE_RATE)]), Utterance(clips[3][8000 : int(15 * SAMPLE_RATE)])]
    expected = [run(make_engine(1), [utterance])[0] for utterance in two]
    needed = max(e.prompt_tokens + e.audio_tokens + len(e.ids) for e in expected)
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    monkeypatch.setattr("asr_server.engine.torch.slots.rounded", lambda tokens: tokens)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 2, 0, ()))
    engine.load()
    decoder, restarts, back_off = engine._runtime.decoder, [], engine._back_off
    room = 2 * (needed - 5)
    monkeypatch.setattr(decoder, "arena", Arena(decoder.arena.shape, room, device=DEVICE, dtype=torch.float32))
    monkeypatch.setattr(decoder, "_capacity", Capacity(2, room, 0, 1))
    monkeypatch.setattr(engine, "_back_off", lambda failure: restarts.append(failure) or back_off(failure))
    assert [answer.ids for answer in run(engine, two)] == [answer.ids for answer in expected]
    assert restarts


def test_an_answer_ends_where_the_models_positions_do(make_engine, run, speech, monkeypatch):
    """A prompt that leaves fewer positions than the budget is answered in what is left."""
    engine = make_engine(1)
    runtime, positions = engine._runtime, 100
    monkeypatch.setattr(runtime, "_positions", positions)
    monkeypatch.setattr(runtime.decoder, "_end_ids", frozenset())
    monkeypatch.setattr("asr_server.engine.row.loop", lambda ids: 0)
    (answer,) = run(engine, [Utterance(speech[: 2 * SAMPLE_RATE])])
    assert answer.finish is Finish.BUDGET
    assert answer.prompt_tokens + answer.audio_tokens + len(answer.ids) == positions


@pytest.mark.parametrize("tokens", [511, 512])
def test_every_row_leaves_a_column_for_padding(monkeypatch, tokens):
    """Memory for two rows of a whole number of columns without it has no room for both."""
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 8, 0, ()))
    engine.load()
    decoder = engine._runtime.decoder
    shape = decoder.arena.shape
    monkeypatch.setattr(decoder, "arena", Arena(shape, 1024, device=DEVICE, dtype=torch.float32))
    monkeypatch.setattr(decoder, "_capacity", Capacity(2, 1024, 0, 1))
    assert decoder.fits(tokens, rows=2) is (tokens < 512)


def test_prompts_that_would_be_padded_to_a_long_one_wait_for_another_pass(make_engine, monkeypatch):
    """Fifteen prompts of half a minute next to the middle of one of 8,000 tokens: padded to it, masks take 2 GB."""
    decoder = make_engine(8)._runtime.decoder
    rows = [
        SimpleNamespace(
            key=key,
            urgent=False,
            length=held,
            input=RowInput(torch.cat, torch.zeros(left, 1), [], torch.zeros(0, 1), tail=1),
        )
        for key, (held, left) in enumerate([(0, 400)] * 7 + [(4_000, 4_000)] + [(0, 400)] * 8)
    ]
    monkeypatch.setattr(decoder, "rows", rows)
    taken = decoder.next_input(8_192)
    places = len(taken) * padded_query(max(count for _, count in taken))
    assert places * max(rounded(row.length + count) for row, count in taken) <= 2**24
    assert [row.key for row, _ in taken] == [key for key in range(16) if key != 7]
    monkeypatch.setattr(decoder, "rows", rows[7:8])
    assert decoder.next_input(8_192) == [(rows[7], 4_000)]


def test_a_row_that_has_no_room_yet_lets_others_go_before_it_but_not_without_end(clips, monkeypatch):
    """A long prompt waits for the slots of three rows; of what comes after it, two may be seated meanwhile."""
    monkeypatch.setattr("asr_server.engine.row_engine._MOST_OVERTAKING", 2)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 6, 24, ()))
    engine.load()
    decoder = engine._runtime.decoder
    monkeypatch.setattr(decoder, "_end_ids", frozenset())

    def seated():
        for _ in range(20):
            list(engine.step())
        return {row.key for row in decoder.rows}

    for key in range(3):
        engine.admit(key, Utterance(clips[3]))
    assert seated() == {0, 1, 2}
    engine.admit(3, Utterance(clips[1], context="kitchen lights " * (decoder.arena.tokens // 4)))
    assert not decoder.fits(engine._runtime.row_tokens(engine._work[3].prepared))
    for key in (4, 5, 6):
        engine.admit(key, Utterance(clips[3]))
    assert seated() == {0, 1, 2, 4, 5}
    for key in (0, 1, 2, 4, 5):
        engine.drop(key)
    assert 3 in seated()
