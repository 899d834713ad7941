"""Rows of one arena that get longer than was planned for."""

import pytest
import torch

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.feature import Plan
from asr_server.engine.memory import Capacity
from asr_server.engine.protocol import Finish, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.torch import attention
from asr_server.engine.torch.passes import Arena

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

DEVICE = torch.device("cpu")


def test_answers_longer_than_expected_grow_and_change_no_id(run, clips, alone, monkeypatch):
    """A row that has room for one token at first gets the ids that it has alone."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
    monkeypatch.setattr("asr_server.engine.memory.ROW_TOKENS", 160)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 8, 2, ()))
    engine.load()
    arena, moved = engine._runtime.decoder.arena, []
    move = arena.move
    monkeypatch.setattr(arena, "move", lambda *given: moved.append(given) or move(*given))
    drafted = [Utterance(clip, draft=(*answer.ids[:3], 1)) for clip, answer in zip(clips, alone, strict=True)]
    for got, expected in zip(run(engine, drafted), alone, strict=True):
        assert got.ids == expected.ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert len(moved) > 1


def test_who_has_no_room_to_grow_begins_again_later(run, make_engine, clips, monkeypatch):
    """Two rows that fit with what is expected of them, and not with what they say."""
    two = [Utterance(clips[3][: int(14.5 * SAMPLE_RATE)]), Utterance(clips[3][8000 : int(15 * SAMPLE_RATE)])]
    expected = [run(make_engine(1), [utterance])[0] for utterance in two]
    needed = max(e.prompt_tokens + e.audio_tokens + len(e.ids) for e in expected)
    monkeypatch.setattr("asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: 1)
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


def test_prompts_of_unlike_lengths_are_not_padded_to_each_other(clips, monkeypatch):
    """One pass over a long prompt and short ones computes no more attention than each has."""
    engine, pairs = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ())), []
    engine.load()
    attend = attention.F.scaled_dot_product_attention

    def see(q, k, v, **given):
        pairs.append((q.shape[2], k.shape[2]))
        return attend(q, k, v, **given)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", see)
    runtime = engine._runtime
    for key, context in enumerate(("", "kitchen lights " * 200, "")):
        engine.admit(key, Utterance(clips[0], context=context))
        list(engine._seat(runtime))
    rows = runtime.decoder.rows
    lengths, layers = [row.input.left for row in rows], runtime.decoder.arena.shape.layers
    with runtime.decoder.computing():
        runtime._encode([(row, row.input.left) for row in rows])
        pairs.clear()  # those of the encoder
        runtime.decoder.prefill([(row, row.input.left) for row in rows])
    assert max(lengths) > 4 * min(lengths)
    assert pairs == [(length, length) for length in lengths] * layers


def test_a_row_that_has_no_room_yet_lets_others_go_before_it_but_not_without_end(clips, monkeypatch):
    """A long prompt waits for the slots of three rows; of what comes after it, two may be seated meanwhile."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine._MOST_OVERTAKING", 2)
    monkeypatch.setattr("asr_server.engine.memory.ROW_TOKENS", 400)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 6, 16, ()))
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
    engine.admit(3, Utterance(clips[1], context="kitchen lights " * (decoder.arena.tokens * 2 // 5)))
    assert not decoder.fits(engine._work[3].row_tokens)
    for key in (4, 5, 6):
        engine.admit(key, Utterance(clips[3]))
    assert seated() == {0, 1, 2, 4, 5}
    for key in (0, 1, 2, 4, 5):
        engine.drop(key)
    assert 3 in seated()
