"""Passes that are recorded: their shapes, what is replayed, and what cannot be."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pytest
import torch
from loguru import logger
from torch.fx.experimental.proxy_tensor import make_fx

from asr_server.engine.conftest import loaded_qwen, qwen, until_decoding
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.torch import memory as torch_memory
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.attention_test import by_formula
from asr_server.engine.torch.passes import Arena, AttentionShape, CudaCapture, Pass, PassShapes

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
    """Rows of different lengths that come and go, with proposals that are right and wrong, and drawn from the hidden
    states of a recorded step: each gets the ids and probabilities that it has without."""
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


class Device:
    """Counts the passes whose results are asked for, and those that were launched before the one before was read."""

    def __init__(self, monkeypatch, failing=()):
        """Reading fails for those numbers of the passes after which another was launched."""
        self.launched = self.ahead = self.failed = 0
        self.events = ""  # L: a pass was launched; R: the results of one were read
        self._failing, self._download = failing, torch_memory.download
        monkeypatch.setattr(torch_memory, "download", self.download)

    def download(self, chosen):
        self.launched += 1
        self.events += "L"
        number, read = self.launched, self._download(chosen)

        def numbers():
            self.events += "R"
            if self.launched > number:
                self.ahead += 1
                if self.ahead in self._failing:
                    self.failed += 1
                    raise MemoryError
            return read()

        return numbers


@pytest.mark.parametrize("failing", [(), (2,), (5,), (6,)])
def test_a_step_is_launched_before_the_one_before_it_is_read(engine, run, clips, alone, monkeypatch, failing):
    """Rows that come and go get the ids that they have alone, also where reading fails with another step launched."""
    _recorded(engine, monkeypatch)
    device = Device(monkeypatch, failing)
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
    """The prompt of an urgent row is run right after the step that was under way when the row came, others after one
    more. A token that is drawn is known to the host first."""
    _recorded(engine, monkeypatch)
    device = Device(monkeypatch)
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


def test_a_load_makes_replayed_steps_too(monkeypatch):
    """Also one that is launched before another is read: on a GPU a kernel is loaded when it is first used."""
    monkeypatch.setattr("asr_server.engine.torch.passes.WIDEST", 256)
    monkeypatch.setattr("asr_server.engine.torch.passes.WIDEST_PROMPT", 256)
    monkeypatch.setattr("asr_server.engine.torch.passes.CudaCapture", lambda device: traced)
    # Its recorded passes take what a GPU's front end makes.
    monkeypatch.setattr("asr_server.engine.qwen_asr.encoder.WindowedEncoder.record", lambda *_: 0)
    device = Device(monkeypatch)
    loaded_qwen(rows=2, options=(Option("use_cuda_graphs", True, "", ""),))
    assert device.ahead


def test_a_row_longer_than_planned_is_replayed_with_the_others(endless, engine, clips, monkeypatch):
    """The row has more places than were planned for one, and no step of it or of the row beside it is made anew."""
    monkeypatch.setattr("asr_server.engine.torch.passes.WIDEST", 4096)
    eager, decoder = _recorded(engine, monkeypatch), engine.runtime.decoder
    share = engine.runtime.capacity.share
    engine.admit(0, Utterance(clips[0]))
    engine.admit(1, Utterance(clips[1], context="kitchen lights " * (share // 2)))
    until_decoding(engine, 2)
    eager.clear()
    for _ in range(5):
        list(engine.step())
    assert max(row.length for row in decoder.rows) > share
    assert not eager


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
    """CUDA is the border: it is asked for the GPU, the graph and its memory, and the work is done twice. Where the end
    of a capture fails, `torch.cuda.graph` does not go back by itself."""
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


@pytest.mark.parametrize("end", [1, 500, 513, 4_097, 20_000])
def test_rows_of_any_lengths_are_replayed_together(end, monkeypatch):
    """One row with hundreds of hotwords does not make the steps of the others slow."""
    monkeypatch.setattr("asr_server.engine.torch.passes.variable_length_problem", lambda *_: "")
    arena = Arena(AttentionShape(1, 1, 1, 1), 30_000, device=torch.device("cpu"), dtype=torch.float32)
    shapes = PassShapes(arena, 64, 384)
    for rows in (1, 3, 64):
        for tokens in (1, 13):
            spans = [TokenSpan(0, end - 1, tokens), *(TokenSpan(400 * n + 21_000, 300, 1) for n in range(1, rows))]
            shape = shapes.step(spans)
            assert shape in shapes.steps()
            assert shape.width >= spans[0].end
            assert shape.rows >= rows


@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 32])
def test_every_prompt_and_proposal_of_half_a_minute_has_a_recorded_shape(rows, variable, monkeypatch):
    """On a card with room for 32 rows of 3,200 tokens: of up to four prompts, and of proposals of any rows."""
    problem = "" if variable else "an older card"
    monkeypatch.setattr("asr_server.engine.torch.passes.variable_length_problem", lambda *_: problem)
    arena = Arena(AttentionShape(1, 1, 1, 1), 32 * 3_200, device=torch.device("cpu"), dtype=torch.float32)
    shapes = PassShapes(arena, 32, 3_072)
    prompts, steps = set(shapes.prompts()), set(shapes.steps())
    for tokens in range(1, 512):
        for start in (0, 130, 512):
            shape = shapes.prompt([TokenSpan(0, start, tokens)] * rows)
            fits = tokens * rows <= 4096 if variable else rows <= 4
            assert (shape in prompts) is fits
            assert not fits or shape.tokens >= rows * tokens
    for tokens in range(1, 14):
        for start in (60, 500, 1_000):
            spans = [TokenSpan(3_072 * number, start, 1) for number in range(1, rows)]
            shape = shapes.step([TokenSpan(0, start, tokens), *spans])
            assert shape in steps
            # One that is not where it was planned to be.
            moved = shapes.step([TokenSpan(100, start, tokens), *spans])
            assert (moved in steps) is (variable or tokens == 1)
            # Where no row is padded to another, a step is at most twice as large as its tokens.
            assert shape.tokens <= 2 * (rows - 1 + tokens) or not variable
    assert len(prompts) + len(steps) <= (70 if variable else 210)
