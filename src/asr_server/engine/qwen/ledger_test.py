"""What passes are made of: how many operations, of which shapes, with how many transfers. Counted, not timed."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from asr_server.engine.plan import Plan
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen import memory, passes
from asr_server.engine.qwen.encoder import WindowedEncoder
from asr_server.engine.qwen.engine import QwenEngine

pytestmark = pytest.mark.torch

MOST_OPERATIONS = 24
MOST_SHAPES, MOST_CONVOLUTIONS = 60, 12
MOST_LOGITS_BYTES = 64 * 2**20
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


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request):
    made = QwenEngine(Plan("qwen", "demo", "cpu", request.param, 8, 0, ()))
    made.load()
    return made


def _decoding(engine, rows, speech):
    """`rows` rows whose prompts have been run."""
    for key in range(rows):
        engine.admit(key, Utterance(speech))
    while len(engine._runtime.decoder.decoding) < rows:
        list(engine.step())


def _end(engine):
    for key in list(engine._work):
        engine.drop(key)


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
def test_a_step_has_few_operations_whatever_the_batch(engine, speech, rows):
    """At most 24 in a layer; none of them is a product of matrices in float32 where the model is not."""
    _decoding(engine, rows, speech)
    model = engine._runtime.decoder._model
    with Ledger() as ledger, torch.inference_mode(False), torch.no_grad():
        begins, model.on_layer = [], lambda: begins.append(len(ledger.calls))
        engine._runtime.decoder.step()
    _end(engine)
    assert len(begins) == len(model._layers) > 2
    for begin, end in pairwise(begins):
        assert end - begin <= MOST_OPERATIONS, [name for name, _, _ in ledger.calls[begin:end]]
    products = [given for name, given, _ in ledger.calls if name in ("mm", "addmm", "linear", "bmm", "mkldnn_linear")]
    assert len(products) == 4 * len(model._layers) + 1
    assert {dtype for given in products for _, dtype in given} == {model.dtype}


@pytest.mark.parametrize("clips", [40, pytest.param(1000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
def test_mixed_work_has_few_shapes(engine, speech, clips, monkeypatch):
    """Clips and growing partials in batches of any size: what kernels are chosen by repeats itself."""
    shapes, convolved, chance = set(), set(), random.Random(5)
    made, convolve = passes.Pass.__init__, WindowedEncoder._convolve

    def see_pass(self, *args):
        made(self, *args)
        shapes.add((self.batch, self.query, self.width))

    def see_pieces(self, pieces, widths):
        convolved.add(1 << (len(pieces) - 1).bit_length())
        return convolve(self, pieces, widths)

    monkeypatch.setattr(passes.Pass, "__init__", see_pass)
    monkeypatch.setattr(WindowedEncoder, "_convolve", see_pieces)
    monkeypatch.setattr("asr_server.engine.qwen.engine.token_budget", lambda samples: 6)
    long = np.tile(speech, 20)
    key = partials = 0
    while key < clips:
        while engine.free_slots and chance.random() < 0.9:
            seconds = chance.choice([0.3, 0.7, 1.5, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0])
            session = f"s{key % 5}" if chance.random() < 0.3 else None
            partials += session is not None
            draft = tuple(chance.choices(range(100), k=chance.choice([3, 8, 20]))) if session else ()
            engine.admit(key, Utterance(long[: int(seconds * 16_000)], session=session, draft=draft))
            key += 1
        list(engine.step())
    _end(engine)
    assert partials > clips / 5
    assert len(shapes) <= MOST_SHAPES, sorted(shapes)
    assert len(convolved) <= MOST_CONVOLUTIONS


def test_a_step_takes_one_transfer_each_way(engine, speech, monkeypatch):
    """What it runs goes to the device in one piece, and what was chosen comes back in one."""
    _decoding(engine, 3, speech)
    up, down = [], []
    upload, to_list = memory.upload, torch.Tensor.tolist
    monkeypatch.setattr(memory, "upload", lambda tensor, device: up.append(tensor) or upload(tensor, device))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: down.append(tensor) or to_list(tensor))
    for name in ("item", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"a step waits: {name}"))
    engine._runtime.step()
    monkeypatch.undo()
    _end(engine)
    assert (len(up), len(down)) == (1, 1)


def test_keys_and_values_stay_where_they_are(speech, clips):
    """From the load on, whatever comes, also where long prompts divide the arena anew."""
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 4, 16, ()))
    engine.load()
    arena = engine._runtime.decoder.arena
    address, divisions = arena.address, set()
    work = [Utterance(clip, context="kitchen lights " * n) for n in (0, 800, 0, 300) for clip in clips[:3]]
    waiting, left = list(enumerate(work)), len(work)
    while left:
        while waiting and engine.free_slots:
            engine.admit(*waiting.pop(0))
        left -= sum(type(outcome).__name__ == "RowDone" for outcome in engine.step())
        divisions.add((arena.slots, arena.columns))
    assert len(divisions) > 1
    assert arena.address == address


def test_few_logits_are_held_at_a_time(engine, speech, monkeypatch):
    """Of a draft of 200 tokens, those of 64 states."""
    decoder, asked = engine._runtime.decoder, []
    head = decoder._head
    monkeypatch.setattr(decoder, "_head", lambda states: asked.append(len(states)) or head(states))
    engine.admit(0, Utterance(np.tile(speech, 8), draft=tuple(range(5, 205))))
    while not asked:
        list(engine.step())
    _end(engine)
    assert sum(asked) == 201
    assert max(asked) * 151_936 * 4 <= MOST_LOGITS_BYTES
