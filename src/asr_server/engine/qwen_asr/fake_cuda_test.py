"""Passes on tensors that say they are on a GPU and hold nothing: where devices or formats are mixed, torch refuses."""

import builtins
import json
import math
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from asr_server import demo
from asr_server.engine import memory as plans
from asr_server.engine.memory import Capacity
from asr_server.engine.qwen_asr.decoder import AnswerRow, ArenaDecoder, choose
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.frontend import MelSettings
from asr_server.engine.qwen_asr.ledger_test import Allocations
from asr_server.engine.qwen_asr.rows import RowInput
from asr_server.engine.row import Draft
from asr_server.engine.torch import memory
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.passes import Layout, Pass, PassShapes
from tools.checkpoints.recogniser import SHAPES, released_config
from tools.sdk import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

DEVICE = torch.device("cuda", 0)
# What is read from the device for a token that was chosen.
CHOICE = (5.0, -0.1, -9.0)
# These make another view of what is there, or only room.
FREE = {
    *("view", "_unsafe_view", "transpose", "unsqueeze", "slice", "select", "split", "split_with_sizes", "permute"),
    *("expand", "t", "alias", "detach", "unbind", "empty", "squeeze", "unflatten", "lift_fresh"),
}


class Ledger(TorchDispatchMode):
    """Operations that compute, with their tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in FREE:
            given = [a for a in args if isinstance(a, torch.Tensor)]
            self.calls.append((name, [(tuple(a.shape), a.dtype) for a in given], out))
        return out


@pytest.fixture(params=["", "an older GPU"])
def older(request, monkeypatch):
    """Where rows of any lengths do not attend in one call, the reason; it is not tried here."""
    monkeypatch.setattr("asr_server.engine.torch.passes.variable_length_problem", lambda *_: request.param)
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16])
def parts(request, older, monkeypatch):
    """Encoder, language model and head of the bundled checkpoint's configuration."""
    config = json.loads((demo.checkpoint_path() / "config.json").read_text())
    with _parts(config, request.param, monkeypatch) as made:
        yield made


@contextmanager
def _parts(config, dtype, monkeypatch):
    config = Qwen3ASRConfig(**config)
    with FakeTensorMode(), torch.inference_mode():
        thinker = Qwen3ASRForConditionalGeneration(config).eval().thinker
        for module in thinker.modules():
            for name, held in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                own = dtype if held.dtype == torch.float32 and name != "inv_freq" else held.dtype
                delattr(module, name)
                module.register_buffer(name, torch.empty(held.shape, device=DEVICE, dtype=own))
        # Pinning needs a driver, and so does switching autocast off.
        monkeypatch.setattr(
            memory, "upload", lambda tensor, device: torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        )
        monkeypatch.setattr(torch, "autocast", lambda **_: nullcontext())
        # Subscripts in Python enter the device first, which this build of torch has none of.
        monkeypatch.setattr(torch.Tensor, "__getitem__", _subscript)
        monkeypatch.setattr(torch.Tensor, "__setitem__", _assign)
        monkeypatch.setattr(torch.Tensor, "copy_", lambda *given, **options: torch.ops.aten.copy_(*given, **options))
        yield WindowedEncoder(thinker.audio_tower), LanguageModel(thinker.model), thinker.lm_head


def _subscript(tensor, key):
    """`tensor[key]` by the operations that it stands for; tensors in a key are indexes of neighbouring dimensions."""
    indexes, dim = {}, 0
    parts = key if isinstance(key, tuple) else (key,)
    for number, part in enumerate(parts):
        match part:
            case builtins.Ellipsis:
                dim = tensor.dim() - sum(other is not None for other in parts[number + 1 :]) - 1
            case None:
                tensor = tensor.unsqueeze(dim)
            case int():
                tensor, dim = tensor.select(dim, part), dim - 1
            case slice():
                begin, end, step = part.indices(tensor.shape[dim])
                tensor = torch.ops.aten.slice(tensor, dim, begin, end, step)
            case torch.Tensor():
                indexes[dim] = part
        dim += 1
    if not indexes:
        return tensor
    return torch.ops.aten.index(tensor, [indexes.get(n) for n in range(max(indexes) + 1)])


def _assign(tensor, key, value):
    parts = key if isinstance(key, tuple) else (key,)
    plain = tuple(slice(None) if isinstance(part, torch.Tensor) else part for part in parts)
    kept = [part for part in parts if not isinstance(part, int)]
    view = _subscript(tensor, plain)
    if any(isinstance(part, torch.Tensor) for part in parts):
        indexes = [part if isinstance(part, torch.Tensor) else None for part in kept]
        torch.ops.aten.index_put_(view, indexes, value)
    elif isinstance(value, torch.Tensor):
        torch.ops.aten.copy_(view, value)
    else:
        torch.ops.aten.fill_(view, value)


def test_a_prefill_and_a_step_stay_on_the_gpu(parts, monkeypatch):
    """Audio of several lengths, prompts in two parts, a draft, a sampled row, and steps with and without proposals."""
    encoder, model, head = parts
    asked = []

    def download(chosen):
        assert chosen.device == DEVICE
        asked.append(tuple(chosen.shape))
        return lambda: [CHOICE] * len(chosen)

    monkeypatch.setattr(memory, "download", download)
    decoder = ArenaDecoder(model, head, frozenset(), Capacity(4, 4 * 2048 * 64, 0, 64))
    for key, frames in enumerate((60, 800, 1230)):
        row = AnswerRow(
            key=key, budget=50, draft=Draft(range(20, 40)) if key == 1 else None, temperature=float(key == 2)
        )
        proposal = row.proposal()
        windows = encoder.windows(torch.zeros(128, frames))
        embeds = model.embed(torch.zeros(9 + len(proposal), dtype=torch.long, device=DEVICE))
        decoder.seat(row, RowInput(torch.cat, embeds[:6], windows, embeds[6:], tail=1 + len(proposal)), None)
    while len(decoder.decoding) < 3:
        given = decoder.next_input(100)
        for row, count in given:
            row.input.add(encoder(missing) if (missing := row.input.missing(count)) else [])
        decoder.prefill(given)
    for _ in range(3):
        decoder.step()
    decoder.drop(decoder.rows[0])
    decoder.step()
    assert len(asked) > 5


def _seat(decoder, keys):
    """Rows without audio, whose prompts are run."""
    for key in keys:
        embeds = decoder.model.embed(torch.zeros(9, dtype=torch.long, device=DEVICE))
        row = AnswerRow(key=key, budget=50, expected=20)
        decoder.seat(row, RowInput(torch.cat, embeds, [], embeds[:0], tail=1), None)
    decoder.prefill(decoder.next_input(100))


def test_a_step_is_launched_with_tokens_that_only_the_gpu_has(parts, monkeypatch):
    """They are of rows that are in the step before; another row came after that, and one left."""
    _, model, head = parts
    monkeypatch.setattr(memory, "download", lambda chosen: lambda: [CHOICE] * len(chosen))
    monkeypatch.setattr(memory, "pinned", memory.upload)
    decoder = ArenaDecoder(model, head, frozenset(), Capacity(4, 4 * 512 * 64, 0, 64))
    assert decoder.record(lambda run: (lambda: None, run()), lambda: None) > 1
    _seat(decoder, range(3))
    decoder.step(ahead=True)
    decoder.drop(decoder.rows[0])
    _seat(decoder, [3])
    filled = []
    index_copy = torch.Tensor.index_copy_
    monkeypatch.setattr(torch.Tensor, "index_copy_", lambda *given: filled.append(given) or index_copy(*given))
    decoder.step(ahead=True)
    ((ids, _, places, tokens),) = filled
    assert {one.device for one in (ids, places, tokens)} == {DEVICE}
    assert (len(ids), len(places), tokens.dtype) == (4, 2, torch.long)


@pytest.mark.parametrize("rows", [1, 5])
def test_a_recorded_step_has_few_operations_whatever_the_batch(parts, older, rows):
    """A layer has at most 24 operations, 20 where rows of any lengths attend in one call; none of them is a product of
    matrices in float32 where the model is not."""
    _, model, head = parts
    capacity = Capacity(8, 8 * 512 * 64, 0, 64)
    decoder = ArenaDecoder(model, head, frozenset(), capacity)
    spans = [TokenSpan(capacity.share * n, 40, 1) for n in range(rows)]
    shape = PassShapes(decoder.arena, capacity.rows, capacity.share).step(spans)
    made = Pass(decoder.arena, Layout(decoder.arena, spans, [5] * rows, shape))
    with Ledger() as ledger:
        begins, model.on_layer = [], lambda: begins.append(len(ledger.calls))
        decoder.greedy(made)
    assert len(begins) == model.config.num_hidden_layers > 2
    for begin, end in pairwise(begins):
        assert end - begin <= (24 if older else 20), [name for name, *_ in ledger.calls[begin:end]]
    products = [given for name, given, _ in ledger.calls if name in ("mm", "addmm", "linear", "bmm")]
    assert len(products) == 4 * len(begins) + 1
    assert {dtype for given in products for _, dtype in given} == {model.dtype}


def test_log_mel_and_the_pieces_of_an_encoder_are_made_on_the_gpu(parts):
    """From the samples on, nothing of the audio comes back to the processor, and windows need one conversion."""
    encoder, _, _ = parts
    found = encoder.log_mel(MelSettings()).log10_mel(np.ones(48_000, np.float32))
    assert (found.device, tuple(found.shape)) == (DEVICE, (128, 300))
    windows = [window for _ in range(8) for window in encoder.windows(torch.zeros(128, 2_400, device=DEVICE))]
    with Ledger() as ledger:
        encoder(windows)
    assert sum("conv" in name for name, *_ in ledger.calls) == 3 * math.ceil(24 * 8 / 32), [n for n, *_ in ledger.calls]
    weights = [convolution.weight for convolution in encoder.convolutions]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    assert sum(name == "_to_copy" for name, *_ in ledger.calls) <= 1


def _pass(parts):
    """The most tokens that a step may take of prompts, and what follows each of the most rows."""
    _, model, head = parts
    tokens, rows = plans.MOST_TOKENS, 64
    decoder = ArenaDecoder(model, head, frozenset(), Capacity(rows, (tokens + 1) * 112 * 1024, 0, 112 * 1024))
    spans = [TokenSpan(n * tokens // rows, 0, tokens // rows) for n in range(rows)]
    embeds = torch.empty(tokens, model.config.hidden_size, dtype=model.dtype, device=DEVICE)

    def run():
        states = model(embeds, Pass(decoder.arena, Layout(decoder.arena, spans)))
        return choose(head, states[:rows], 0)

    return run


def _windows(parts):
    """More windows of audio than are encoded at a time."""
    encoder = parts[0]
    windows = [window for _ in range(5) for window in encoder.windows(torch.empty(128, 2_400, device=DEVICE))]
    return lambda: encoder(windows)


def _recorded_windows(parts):
    """The windows that are recorded together, and what is kept of each."""
    return lambda: parts[0].record(lambda run: (lambda: None, run()), lambda: None)


@pytest.mark.parametrize("made", [_pass, _windows, _recorded_windows])
def test_a_pass_takes_the_memory_that_is_planned(monkeypatch, made):
    """The plan and the allocations agree for the released 1.7B in bfloat16."""
    monkeypatch.setattr("asr_server.engine.torch.passes.variable_length_problem", lambda *_: "")
    with _parts(released_config(SHAPES["1.7b"]), torch.bfloat16, monkeypatch) as parts:
        run = made(parts)
        with Allocations() as allocations:
            run()
    assert plans.PASS_BYTES / 10 < allocations.most_bytes <= plans.PASS_BYTES


@pytest.mark.parametrize("seconds", [0.7, 2, 2.5, 29.99])
def test_fourier_transforms_have_few_different_sizes(parts, seconds):
    """cuFFT plans each new number of frames, in half a millisecond."""
    found, stft = [], torch.stft
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "stft", lambda *given, **options: found.append(stft(*given, **options)) or found[-1])
        mel = parts[0].log_mel(MelSettings()).log10_mel(np.ones(int(seconds * 16_000), np.float32))
    assert tuple(mel.shape) == (128, int(seconds * 100))
    assert found[0].shape[1] == 100 * math.ceil(seconds)
