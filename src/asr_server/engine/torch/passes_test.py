"""Passes that are recorded: their shapes, what is replayed, and what cannot be."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from loguru import logger
from torch.fx.experimental.proxy_tensor import make_fx

from asr_server.engine.conftest import loaded_qwen, qwen
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.torch import memory as torch_memory
from asr_server.engine.torch.attention_test import by_formula
from asr_server.engine.torch.passes import CudaCapture, Pass

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


def traced(run):
    """A `Capture`: like a graph, it knows the tensors that were there, and writes where it wrote."""
    operations = make_fx(run)()
    computed = run()

    def replay():
        for kept, new in zip(computed, operations(), strict=True):
            kept.copy_(new)

    return replay, computed


def _recorded(engine, monkeypatch):
    """Records the passes of an engine; returns the longest row of those that are not replayed from now on."""
    eager, made = [], Pass.__init__
    decoder = engine.runtime.decoder
    with torch.inference_mode():
        assert min(record(traced, lambda: None) for record in (decoder.record, decoder.record_prompts)) > 1

    def see(self, arena, layout, numbers=None):
        made(self, arena, layout, numbers)
        eager.append(max(span.end for span in layout.spans))

    monkeypatch.setattr(Pass, "__init__", see)
    return eager


@pytest.fixture(params=["padded", "variable length"])
def engine(request, monkeypatch):
    """Four rows. FlashAttention is the border."""
    if request.param == "variable length":
        monkeypatch.setattr("asr_server.engine.torch.attention.flash", by_formula)
        monkeypatch.setattr("asr_server.engine.torch.passes.variable_length_problem", lambda *_: "")
        monkeypatch.setattr("asr_server.engine.torch.passes.PROMPT_TOKENS", (64, 256, 1024))
    monkeypatch.setattr("asr_server.engine.torch.passes.WIDEST", 256)
    monkeypatch.setattr("asr_server.engine.torch.passes.WIDEST_PROMPT", 256)
    return loaded_qwen(budget_mb=16)


def test_recorded_steps_answer_as_others_do(engine, run, clips, alone, monkeypatch):
    """Rows that come and go, with proposals right and wrong, and drawn from the states of a recorded step."""
    said = alone[0].ids
    drafts = [(*said[:3], 5, *said[4:]), said]
    works = [*(Utterance(clips[0], draft=draft) for draft in drafts), *map(Utterance, clips)]
    works.append(Utterance(clips[0], temperature=0.8, seed=3))
    expected = run(engine, works)
    eager = _recorded(engine, monkeypatch)
    found = run(engine, works)
    for got, own in zip(found, expected, strict=True):
        assert got.ids == own.ids
        assert got.logprobs == pytest.approx(own.logprobs, abs=1e-3)
        assert got.no_speech_prob == pytest.approx(own.no_speech_prob, abs=1e-3)
    assert max(got.passes for got in found[:2]) < len(said)
    assert not [longest for longest in eager if longest <= 256]


def _device(monkeypatch, failing=()):
    """Count passes, and those launched before the one before was read; reading fails after some numbers of these."""
    # Of the events: L, a pass was launched; R, the results of one were read.
    seen, download = SimpleNamespace(launched=0, ahead=0, failed=0, events=""), torch_memory.download

    def launch(chosen):
        seen.launched += 1
        seen.events += "L"
        number, read = seen.launched, download(chosen)

        def numbers():
            seen.events += "R"
            if seen.launched > number:
                seen.ahead += 1
                if seen.ahead in failing:
                    seen.failed += 1
                    raise MemoryError
            return read()

        return numbers

    monkeypatch.setattr(torch_memory, "download", launch)
    return seen


@pytest.mark.parametrize("failing", [(), (2,), (5,), (6,)])
def test_a_step_is_launched_before_the_one_before_it_is_read(engine, run, clips, alone, monkeypatch, failing):
    """Rows that come and go get the ids that they have alone, also where reading fails with another step launched."""
    _recorded(engine, monkeypatch)
    device = _device(monkeypatch, failing)
    # Steps of longer rows are not recorded here.
    short = [(Utterance(clip), answer) for clip, answer in zip(clips, alone, strict=True) if len(clip) < 8 * 16_000]
    for got, (_, expected) in zip(run(engine, [utterance for utterance, _ in short]), short, strict=True):
        assert got.ids == expected.ids
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert device.failed == len(failing)
    assert device.ahead > device.launched / 4, (device.ahead, device.launched)


@pytest.mark.parametrize(("given", "ahead"), [({}, True), ({"temperature": 0.5, "seed": 1}, False)])
@pytest.mark.parametrize("urgent", [False, True])
def test_no_step_is_launched_before_an_urgent_prompt_nor_before_what_it_needs_is_known(
    engine, clips, monkeypatch, given, ahead, urgent
):
    """An urgent prompt runs after the present step, others after one more. The host knows a sampled token first."""
    _recorded(engine, monkeypatch)
    device = _device(monkeypatch)
    engine.admit(0, Utterance(clips[0], **given))
    for _ in range(4):
        list(engine.step())
    assert bool(device.ahead) is ahead
    engine.admit(1, Utterance(clips[1]), urgent)
    device.events = ""
    list(engine.step())
    assert len(engine.runtime.decoder.decoding) == 2
    # The prompt is the last pass that is read. The step after it is launched before.
    assert device.events == ("LRLR" if not ahead else "RLLR" if urgent else "LRLLR")


def _refused():
    error = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
    error.error_code = 900
    return error


@pytest.mark.parametrize("error", [_refused(), torch.OutOfMemoryError()])
def test_a_gpu_that_cannot_record_is_used_without(run, clips, alone, monkeypatch, error):
    """A warning is logged for steps, prompts and encoder passes, and the option says why it is inactive."""
    capture, lines = Mock(side_effect=error), []
    monkeypatch.setattr("asr_server.engine.torch.passes.CudaCapture", lambda device: capture)
    engine = qwen(rows=2, options=(Option("use_cuda_graphs", True, "", ""),))
    sink = logger.add(lines.append, format="{level} {message}", level="WARNING")
    engine.load()
    logger.remove(sink)
    assert len(lines) == 3
    assert all("passes are not recorded" in line for line in lines)
    (told,) = (option for option in engine.info.options if option.name == "use_cuda_graphs")
    assert (told.active, "the log" in told.reason) == (False, True)
    assert run(engine, [Utterance(clips[0])])[0].ids == alone[0].ids


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_is_made_on_the_engines_gpu_and_leaves_the_stream_as_it_was(monkeypatch, fails):
    """CUDA is the border. If the end of a capture fails, `torch.cuda.graph` does not go back by itself."""
    current, entered, ran = ["its own"], [], []

    @contextmanager
    def stream(chosen):
        before, current[0] = current[0], chosen
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def graph(graph, pool):
        entered.append(pool)
        before, current[0] = current[0], "the capture's"
        yield
        if fails:
            raise _refused()
        current[0] = before

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(entered.append(device)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with pytest.raises(torch.AcceleratorError) if fails else nullcontext():
        CudaCapture(torch.device("cuda", 1))(lambda: ran.append(list(entered)))
    assert ran == [[], [torch.device("cuda", 1), "pool"]]
    assert current == ["its own"]
