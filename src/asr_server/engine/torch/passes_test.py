"""The places that a pass writes to, and what its tokens see. The keys are positions, so that a mix-up shows."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from loguru import logger
from torch.fx.experimental.proxy_tensor import make_fx

from asr_server.engine import memory
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Option, Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.torch import memory as torch_memory
from asr_server.engine.torch.passes import (
    Arena,
    AttentionShape,
    CudaCapture,
    Layout,
    Pass,
    PassShape,
    TokenSpan,
    prompt_shapes,
    step_shapes,
)

pytestmark = pytest.mark.torch

SLOTS, COLUMNS = 4, 512


@pytest.fixture
def arena():
    made = Arena(AttentionShape(1, 2, 1, 4), SLOTS * COLUMNS, device=torch.device("cpu"), dtype=torch.float32)
    made.divide(SLOTS, COLUMNS, [])
    return made


def _run(arena, *spans):
    """Run a pass in which each token's key and value is its position, and those of padding -1."""
    ids = range(sum(span.count for span in spans)) if all(span.count == 1 for span in spans) else ()
    made = Pass(arena, Layout(arena, spans, ids))
    held = made.positions[:, None, None].float().repeat(1, 1, 4)
    held[sum(span.count for span in spans) :] = -1
    made.attend(0, torch.zeros(len(held), 2, 4), held, held)
    return made


def _held(arena, slot, tokens):
    return arena.layer(0)[0, slot, 0, :tokens, 0].tolist()


@pytest.mark.parametrize("last", [126, 255, 256, 300])
def test_tokens_see_what_is_before_them_and_themselves(arena, last):
    """The rows end at different places and have different numbers of queries, and one query is padded."""
    _run(arena, TokenSpan(0, 0, last), TokenSpan(1, 0, last))
    made = _run(arena, TokenSpan(0, last, 1), TokenSpan(1, last - 3, 3))
    visible = (made._mask == 0).sum(-1)[:, 0]
    assert visible[0, 0] == last + 1
    assert visible[1, [0, 2, 4]].tolist() == [last - 2, last - 1, last]
    assert _held(arena, 0, last + 1) == list(range(last + 1))
    assert _held(arena, 1, last) == list(range(last))


@pytest.mark.parametrize("tokens", [1, 200, 255])
def test_padding_never_lies_on_a_token(arena, tokens):
    """A step of three rows is padded to four, next to a row whose prompt is not run to its end."""
    held = (tokens, 200, 255, 256)
    _run(arena, *(TokenSpan(slot, 0, count) for slot, count in enumerate(held)))
    made = _run(arena, *(TokenSpan(slot, count, 1) for slot, count in enumerate(held[:3])))
    assert (made.batch, made.query, len(made.ids)) == (4, 1, 4)
    assert all(
        _held(arena, slot, count + (slot < 3)) == list(range(count + (slot < 3))) for slot, count in enumerate(held)
    )


def test_clearing_takes_no_memory_for_what_was_never_written():
    """Slots of half a GiB each; on a CPU the system provides what is written."""
    arena, pages = Arena(AttentionShape(1, 1, 1, 64), 2**21, device=torch.device("cpu"), dtype=torch.float32), []
    arena.divide(2, 2**20, [])
    for _ in range(2):
        pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
        arena.clear(1, 1000)
    assert (pages[1] - pages[0]) * os.sysconf("SC_PAGE_SIZE") < 2**25


def test_a_new_division_keeps_what_rows_hold(arena):
    """Into longer slots, shorter ones, and back; what is no number is not left behind."""
    _run(arena, TokenSpan(0, 0, 100), TokenSpan(1, 0, 60))
    arena.layer(0)[:, 1, :, 50] = torch.nan
    for slots, columns in ((2, 1024), (8, 256), (SLOTS, COLUMNS)):
        arena.divide(slots, columns, [100, 60])
        assert _held(arena, 0, 100) == list(range(100))
        assert _held(arena, 1, 50) == list(range(50))
    arena.clear(1, 60)
    assert not arena.layer(0).isnan().any()


def test_a_token_of_the_released_models_takes_112_kib():
    """The figure that is published for both sizes."""
    assert AttentionShape(layers=28, heads=16, kv_heads=8, dim=128).token_bytes(torch.bfloat16) == 112 * 1024


def traced(run):
    """A `Capture`: like a graph, it knows the tensors that were there, and writes where it wrote."""
    operations = make_fx(run)()
    computed = run()

    def replay():
        for kept, new in zip(computed, operations(), strict=True):
            kept.copy_(new)

    return replay, computed


def _recorded(engine, monkeypatch):
    """Records the passes of an engine; returns the shapes of those that are not replayed from now on."""
    eager, made = [], Pass.__init__
    decoder = engine._runtime.decoder
    with torch.inference_mode():
        assert min(record(traced, lambda: None) for record in (decoder.record, decoder.record_prompts)) > 1

    def see(self, arena, layout, numbers=None):
        made(self, arena, layout, numbers)
        eager.append(layout.shape)

    monkeypatch.setattr(Pass, "__init__", see)
    return eager


@pytest.fixture
def engine(monkeypatch):
    """Four rows."""
    monkeypatch.setattr("asr_server.engine.torch.passes._WIDEST", 256)
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
    assert not [shape for shape in eager if shape.width <= 256]


class Device:
    """Counts the passes whose results are asked for, and those that were launched before the one before was read."""

    def __init__(self, monkeypatch, failing=()):
        """Reading fails for those numbers of the passes after which another was launched."""
        self.launched = self.ahead = self.failed = 0
        self._failing, self._download = failing, torch_memory.download
        monkeypatch.setattr(torch_memory, "download", self.download)

    def download(self, chosen):
        self.launched += 1
        number, read = self.launched, self._download(chosen)

        def numbers():
            if self.launched > number:
                self.ahead += 1
                if self.ahead in self._failing:
                    self.failed += 1
                    raise MemoryError
            return read()

        return numbers


@pytest.mark.parametrize("failing", [(), (5,)])
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
def test_no_step_is_launched_before_a_prompt_that_waits_nor_before_what_it_needs_is_known(
    engine, clips, monkeypatch, given, ahead
):
    """The prompt of a row is run right after the step that was under way when the row came. A token that is drawn is
    known to the host first."""
    _recorded(engine, monkeypatch)
    device = Device(monkeypatch)
    engine.admit(0, Utterance(clips[0], **given))
    for _ in range(4):
        list(engine.step())
    assert bool(device.ahead) is ahead
    engine.admit(1, Utterance(clips[1]))
    launched = device.ahead
    list(engine.step())
    assert len(engine._runtime.decoder.decoding) == 2
    assert device.ahead == launched


@pytest.mark.nightly
def test_proposals_and_prompts_are_replayed_too(engine, run, clips, alone, monkeypatch):
    """With 50 speakers nearly every step has a proposal, and every partial a prompt."""
    clip, expected = clips[0], alone[0]
    works = [Utterance(clip, draft=(*expected.ids[:3], 5, *expected.ids[4:])), Utterance(clip, draft=expected.ids)]
    eager = _recorded(engine, monkeypatch)
    engine.admit(7, Utterance(clips[1]))  # the prompts of the others are not in the first slots
    while not engine._runtime.decoder.decoding:
        list(engine.step())
    for got in run(engine, works):
        assert got.ids == expected.ids
        assert got.passes < len(expected.ids)
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    assert not eager


@pytest.mark.nightly
def test_a_sampled_row_reads_what_was_replayed(engine, run, clips, monkeypatch):
    """The row's token is drawn from the hidden states of the recorded step."""
    works = [Utterance(clips[0], temperature=0.8, seed=3), Utterance(clips[1])]
    expected = run(engine, works)
    eager = _recorded(engine, monkeypatch)
    assert [got.ids for got in run(engine, works)] == [answer.ids for answer in expected]
    assert not eager


@pytest.mark.nightly
def test_a_load_makes_replayed_steps_too(monkeypatch):
    """Also one that is launched before another is read: on a GPU a kernel is loaded when it is first used."""
    monkeypatch.setattr("asr_server.engine.torch.passes._WIDEST", 256)
    monkeypatch.setattr("asr_server.engine.torch.passes._WIDEST_PROMPT", 256)
    monkeypatch.setattr("asr_server.engine.torch.passes.CudaCapture", lambda device: traced)
    # Its recorded passes take what a GPU's front end makes.
    monkeypatch.setattr("asr_server.engine.qwen_asr.encoder.WindowedEncoder.record", lambda *_: 0)
    device = Device(monkeypatch)
    QwenEngine(Plan("qwen", "demo", "cpu", "float32", 2, 0, (Option("use_cuda_graphs", True, "", ""),))).load()
    assert device.ahead


@pytest.mark.nightly
def test_steps_over_another_division_are_made_until_the_long_row_has_left(clips, monkeypatch):
    """A row that may become long has a longer slot than those in which steps were recorded, although it is short yet.
    The row beside it is replayed once that one has left."""
    monkeypatch.setattr("asr_server.engine.memory.ROW_TOKENS", 260)
    monkeypatch.setattr("asr_server.engine.torch.passes._WIDEST", 256)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 8, ()))
    engine.load()
    decoder = engine._runtime.decoder
    monkeypatch.setattr(decoder, "_end_ids", frozenset())
    eager, planned, made = _recorded(engine, monkeypatch), decoder.arena.columns, []
    longest = len(clips[0])
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: 2 * planned)
    monkeypatch.setattr(
        "asr_server.engine.qwen_asr.runtime.expected_tokens", lambda samples: planned if samples == longest else 30
    )
    for key, clip in enumerate(clips[:2]):
        engine.admit(key, Utterance(clip))
    while len(decoder.decoding) < 2:
        list(engine.step())
    eager.clear()
    for _ in range(2):
        list(engine.step())
        made.append((decoder.arena.columns > planned, len(eager)))
        engine.drop(0)
    assert made == [(True, 1), (False, 1)]


def test_slots_have_an_even_length_that_a_planned_row_fits():
    """Masks of uneven widths are padded and copied by kernels in every layer."""
    token_bytes = 100
    for tokens in (memory.ROW_TOKENS, 900, 3_314):
        columns = memory.Capacity(32, 32 * tokens * token_bytes, 0, token_bytes).columns
        assert columns % 128 == 0
        assert memory.ROW_TOKENS <= columns <= tokens


def test_what_is_recorded_is_recorded_on_the_engines_gpu(monkeypatch):
    """CUDA is the border: it is asked for the GPU, the graph and its memory, and the work is done twice."""
    entered, ran = [], []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(entered.append(device)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext(entered.append(pool)))
    CudaCapture(torch.device("cuda", 1))(lambda: ran.append(list(entered)))
    assert ran == [[], [torch.device("cuda", 1), "pool"]]


def _refused():
    error = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
    error.error_code = 900
    return error


@pytest.mark.parametrize("error", [_refused(), torch.OutOfMemoryError()])
def test_a_gpu_that_cannot_record_is_used_without(run, clips, alone, monkeypatch, error):
    """A warning is logged for steps, prompts and encoder passes, and the option says why it is inactive."""
    capture, lines = Mock(side_effect=error), []
    monkeypatch.setattr("asr_server.engine.torch.passes.CudaCapture", lambda device: capture)
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 2, 0, (Option("use_cuda_graphs", True, "", ""),)))
    sink = logger.add(lines.append, format="{level} {message}", level="WARNING")
    engine.load()
    logger.remove(sink)
    assert len(lines) == 3
    assert all("passes are not recorded" in line for line in lines)
    (told,) = (option for option in engine.info.options if option.name == "use_cuda_graphs")
    assert (told.active, "the log" in told.reason) == (False, True)
    assert run(engine, [Utterance(clips[0])])[0].ids == alone[0].ids


def test_what_cannot_be_recorded_leaves_the_stream_as_it_was(monkeypatch):
    """torch.cuda is the border: where the end of a capture fails, `torch.cuda.graph` does not go back by itself."""
    current = ["its own"]

    @contextmanager
    def stream(chosen):
        before, current[0] = current[0], chosen
        try:
            yield
        finally:
            current[0] = before

    @contextmanager
    def graph(graph, pool):
        current[0] = "the capture's"
        yield
        raise _refused()

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Mock)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    with pytest.raises(torch.AcceleratorError):
        CudaCapture(torch.device("cuda", 0))(lambda: ())
    assert current == ["its own"]


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_every_prompt_and_proposal_of_half_a_minute_has_a_recorded_shape(rows):
    """On a card with room for 32 rows of 3,200 tokens: of up to four prompts, and of proposals of any rows."""
    arena = Arena(AttentionShape(1, 1, 1, 1), 32 * 3_200, device=torch.device("cpu"), dtype=torch.float32)
    arena.divide(32, 3_200, [])
    prompts, steps = set(prompt_shapes(arena)), set(step_shapes(arena))
    for tokens in range(14, 512):
        for start in (0, 130, 512):
            shape = PassShape.of(arena, [TokenSpan(slot, start, tokens) for slot in range(rows)])
            assert (shape in prompts) is (rows <= 4)
    for tokens in range(2, 14):
        for start in (60, 500, 1_000):
            assert PassShape.of(arena, [TokenSpan(slot, start, tokens) for slot in range(rows)]) in steps
    assert len(prompts) + len(steps) <= 170
