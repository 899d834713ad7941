"""Recorded steps. The border to CUDA is a tracer: what it replays are operations on tensors, and no line of Python."""

from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.torch.passes import Pass
from asr_server.engine.torch.step_graphs import CudaCapture

pytestmark = pytest.mark.torch


def _traced(run):
    """A `Capture`: like a graph, it knows the tensors that were there, and writes where it wrote."""
    operations = make_fx(run)()
    computed = run()

    def replay():
        for kept, new in zip(computed, operations(), strict=True):
            kept.copy_(new)

    return replay, computed


def _recorded(engine, monkeypatch):
    """Records the steps of an engine; returns the shapes of steps that are not replayed from now on."""
    eager, made = [], Pass.__init__
    with torch.inference_mode():
        assert engine._runtime.decoder.record(_traced, lambda: None) > 1

    def see(self, arena, layout, numbers=None):
        made(self, arena, layout, numbers)
        if layout.query == 1:
            eager.append((layout.batch, layout.width))

    monkeypatch.setattr(Pass, "__init__", see)
    return eager


@pytest.fixture
def engine(monkeypatch):
    """Four rows."""
    monkeypatch.setattr("asr_server.engine.torch.step_graphs._WIDEST", 256)
    made = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 0, ()))
    made.load()
    return made


def test_recorded_steps_answer_as_others_do(engine, run, clips, alone, monkeypatch):
    """Rows of different lengths that come and go: each gets the ids and probabilities that it has alone."""
    eager = _recorded(engine, monkeypatch)
    for got, expected in zip(run(engine, [Utterance(clip) for clip in clips]), alone, strict=True):
        assert got.ids == expected.ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert got.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-3)
    assert not [width for _, width in eager if width <= 256]


def test_a_sampled_row_reads_what_was_replayed(engine, run, clips, monkeypatch):
    """The row's token is drawn from the hidden states of the recorded step."""
    works = [Utterance(clips[0], temperature=0.8, seed=3), Utterance(clips[1])]
    expected = run(engine, works)
    eager = _recorded(engine, monkeypatch)
    assert [got.ids for got in run(engine, works)] == [answer.ids for answer in expected]
    assert not eager


@pytest.mark.nightly
def test_steps_over_another_division_are_made(run, clips, monkeypatch):
    """A long row needs a longer slot than those in which steps were recorded; short ones are as before."""
    monkeypatch.setattr("asr_server.engine.torch.memory.ROW_TOKENS", 260)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 8, ()))
    engine.load()
    works = [Utterance(clip) for clip in (np.tile(clips[0], 6), *clips[1:4])]
    expected = run(engine, works)
    eager, arena = _recorded(engine, monkeypatch), engine._runtime.decoder.arena
    planned = arena.columns
    assert [got.ids for got in run(engine, works)] == [answer.ids for answer in expected]
    assert any(width > planned for _, width in eager)
    assert any(width < planned for _, width in eager)


def test_what_is_recorded_is_recorded_on_the_engines_gpu(monkeypatch):
    """CUDA is the border: it is asked for the GPU, the graph and its memory, and the work is done twice."""
    entered, ran = [], []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(entered.append(device)))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext(entered.append(pool)))
    CudaCapture(torch.device("cuda", 1))(lambda: ran.append(list(entered)))
    assert ran == [[], [torch.device("cuda", 1), "pool"]]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(RuntimeError("operation not permitted"), ModelUnavailable), (torch.OutOfMemoryError(), EngineOutOfMemory)],
)
def test_a_gpu_that_cannot_record_stops_the_load(monkeypatch, error, expected):
    """The error says what to set, and nothing is left loaded."""
    monkeypatch.setattr("asr_server.engine.torch.row_runtime.CudaCapture", Mock(side_effect=error))
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 1, 0, (Option("use_cuda_graphs", True, "", ""),)))
    with pytest.raises(expected, match="USE_CUDA_GRAPHS" if expected is ModelUnavailable else "memory"):
        engine.load()
    assert not engine.loaded
