"""The shapes, transfers and memory of passes. They are counted, not timed."""

import random
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr_server.engine import memory as plans
from asr_server.engine.conftest import loaded_qwen, until_decoding
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import decoder
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.torch import memory
from asr_server.engine.torch.passes import Pass, PassShapes

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

MOST_CONVOLUTIONS = 12
MOST_LOGITS_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def engine():
    return loaded_qwen(rows=8)


def _end(engine, rows):
    for key in range(rows):
        engine.drop(key)


@pytest.mark.parametrize("clips", [40, pytest.param(1000, marks=pytest.mark.timeout(900))])
def test_mixed_work_has_few_shapes(engine, run, speech, clips, monkeypatch):
    """Clips and growing partials with hotwords, in batches of any size: what an encoder's kernels are chosen by repeats
    itself, and every step has the shape of one that a GPU records."""
    convolved, steps, chance = set(), [], random.Random(5)
    images, made = WindowedEncoder.images, Pass.__init__

    def see_pass(self, arena, layout, numbers=None):
        steps.extend([layout.spans] if layout.lengths[0] else [])  # a prompt's tokens have no ids
        made(self, arena, layout, numbers)

    def see_pieces(self, x, ends):
        convolved.add(tuple(x.shape))
        return images(self, x, ends)

    monkeypatch.setattr(WindowedEncoder, "images", see_pieces)
    monkeypatch.setattr(Pass, "__init__", see_pass)
    said = run(engine, [Utterance(speech)])[0].ids
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: 12)
    long = np.tile(speech, 20)
    key = partials = 0
    while key < clips:
        while engine.free_slots and chance.random() < 0.9:
            seconds = chance.choice([0.3, 0.7, 1.5, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0])
            session = f"s{key % 5}" if chance.random() < 0.3 else None
            partials += session is not None
            draft = (*said[:2], 5, *said[3 : chance.choice([3, 8, 20])]) if session else ()
            words = "lamp kitchen Zürich " * chance.choice([0, 0, 3, 20])
            engine.admit(key, Utterance(long[: int(seconds * 16_000)], context=words, session=session, draft=draft))
            key += 1
        list(engine.step())
    _end(engine, clips)
    assert partials > clips / 5
    assert len(convolved) <= MOST_CONVOLUTIONS
    assert any(span.count > 1 for spans in steps for span in spans)
    arena, share = engine.runtime.decoder.arena, engine.runtime.capacity.share
    for variable in (False, True):
        shapes = PassShapes(SimpleNamespace(variable=variable, tokens=arena.tokens), 8, share)
        recorded = set(shapes.steps())
        assert [spans for spans in steps if shapes.step(spans) not in recorded] == []


def test_a_step_takes_one_transfer_each_way(engine, speech, monkeypatch):
    """The numbers that a step runs with go to the device in one piece, and what was chosen comes back in one."""
    for key in range(3):
        engine.admit(key, Utterance(speech))
    until_decoding(engine, 3)
    up, down = [], []
    upload, to_list = memory.upload, torch.Tensor.tolist
    monkeypatch.setattr(memory, "upload", lambda tensor, device: up.append(tensor) or upload(tensor, device))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: down.append(tensor) or to_list(tensor))
    for name in ("item", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"a step waits: {name}"))
    engine.runtime.step()
    monkeypatch.undo()
    _end(engine, 3)
    assert (len(up), len(down)) == (1, 1)


def test_few_logits_are_held_at_a_time(engine, speech, monkeypatch):
    """A draft of 200 tokens holds the logits of at most 64 states."""
    asked, choose = [], decoder.choose

    def chosen(head, *given):
        return choose(lambda states: asked.append(len(states)) or head(states), *given)

    monkeypatch.setattr(decoder, "choose", chosen)
    engine.admit(0, Utterance(np.tile(speech, 8), draft=tuple(range(5, 205))))
    while not asked:
        list(engine.step())
    _end(engine, 1)
    assert sum(asked) == 201
    assert max(asked) * 151_936 * 4 <= MOST_LOGITS_BYTES


class Allocations(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, until they are freed; views make none."""

    def __init__(self):
        super().__init__()
        self.held_bytes = self.most_bytes = 0
        self._known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = {address for address, _ in self._storages(args)}
        for address, storage in self._storages(made):
            if address not in self._known and address not in given:
                self._known.add(address)
                self.held_bytes += storage.nbytes()
                weakref.finalize(storage, self._free, address, storage.nbytes())
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        return made

    @staticmethod
    def _storages(tree):
        tensors = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
        return [(StorageWeakRef(storage).cdata, storage) for storage in (one.untyped_storage() for one in tensors)]

    def _free(self, address, nbytes):
        self._known.remove(address)
        self.held_bytes -= nbytes


@pytest.mark.timeout(1800)
def test_memory_does_not_grow_over_thousands_of_random_rows(speech, monkeypatch):
    """Hotwords, lengths, sessions and drafts vary in every row: a second half needs no more than the first, within what
    is planned for a pass, and nothing is left of rows and sessions."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.engine.token_budget", lambda samples: 6)
    engine, chance, rows = loaded_qwen(rows=8, budget_mb=32), random.Random(11), 3_000
    runtime, long, most = engine.runtime, np.tile(speech, 10), []
    # On a busy machine passes would have other sizes.
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, begin_s: 1_000)
    words = ["lamp", "kitchen", "Zürich", "Ōsaka", "7", "play", "music", "你好"]
    with Allocations() as allocations:
        for half in range(2):
            allocations.most_bytes, key = 0, half * rows // 2
            while key < (half + 1) * rows // 2:
                if engine.free_slots:
                    seconds, count = chance.choice([0.3, 1, 2, 3, 4, 6, 8, 15]), chance.choice([0, 3, 20, 60, 200])
                    session = f"s{chance.randrange(40)}" if chance.random() < 0.4 else None
                    draft = tuple(chance.choices(range(100), k=chance.choice([0, 3, 20]))) if session else ()
                    context = " ".join(chance.choices(words, k=count))
                    engine.admit(
                        key, Utterance(long[: int(seconds * 16_000)], context=context, session=session, draft=draft)
                    )
                    key += 1
                else:
                    list(engine.step())
            most.append(allocations.most_bytes)
        _end(engine, rows)
        kept = len(runtime.prefix_cache)
        runtime.prefix_cache.clear()
    assert kept > 1
    assert most[1] <= 1.05 * most[0] <= plans.PASS_BYTES
    assert allocations.held_bytes == 0
