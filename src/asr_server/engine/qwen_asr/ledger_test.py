"""The memory of passes, counted."""

import random
import weakref

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asr_server.engine import memory as plans
from asr_server.engine.conftest import loaded_qwen
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.protocol import Utterance

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


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
    """A second half needs no more than the first, within what is planned, and nothing is left of rows and sessions."""
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
        for key in range(rows):
            engine.drop(key)
        kept = len(runtime.prefix_cache)
        runtime.prefix_cache.clear()
    assert kept > 1
    assert most[1] <= 1.05 * most[0] <= plans.PASS_BYTES
    assert allocations.held_bytes == 0
