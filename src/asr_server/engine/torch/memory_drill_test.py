"""Memory that runs out in the middle of a pass, at the border to torch: what is freed, tried again, and who is hurt."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from asr_server.engine.conftest import ends, loaded_qwen
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.protocol import Utterance
from asr_server.schedule.model import RowDone

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


class Shortage(TorchDispatchMode):
    """Memory runs out `times` times from `begin` on, each at the `at`-th operation of a pass."""

    def __init__(self):
        super().__init__()
        self.at = self.times = self.ran = 0
        self.made, self.over = [], False
        self.left = []  # how many tensors of each failed pass were alive when the next operation ran

    def begin(self, at, times=1):
        self.at, self.times, self.ran, self.made = at, times, 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.over:
            self.left.append(sum(not storage.expired() for storage in self.made))
            self.made, self.ran, self.over = [], 0, False
        self.ran += 1
        if self.times and self.ran == self.at:
            self.times, self.over = self.times - 1, True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        before = {StorageWeakRef(a.untyped_storage()) for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        # Not the places of the pass: the cache keeps those of the last one.
        noted = self.times and isinstance(result, torch.Tensor) and result.dtype != torch.long
        if noted and (made := StorageWeakRef(result.untyped_storage())) not in before:
            self.made.append(made)
        return result


def test_what_is_kept_of_sessions_is_given_back_first(clips, alone, monkeypatch):
    """The pass is run again with all of its rows, and succeeds. Only if it fails again do fewer decode together."""
    # On a busy machine the first step would begin some of the rows, and the counts be others.
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, begin_s: 100_000)
    engine, found = loaded_qwen(rows=8), {}
    for times, rows in ((1, 3), (2, 1)):
        ends(engine, Utterance(clips[3][: 9 * 16_000], session="speaker"))
        assert len(engine.runtime.prefix_cache) > 0
        with Shortage() as shortage:
            for key, clip in enumerate(clips[:3]):
                engine.admit(key, Utterance(clip))
            list(engine.step())
            shortage.begin(60, times)
            list(engine.step())
            assert shortage.times == 0
            assert len(engine.runtime.prefix_cache) == 0
            assert len(engine.runtime.decoder.rows) == rows
            found.clear()
            while len(found) < 3:
                found |= {one.key: one.value.ids for one in engine.step() if isinstance(one, RowDone)}
            assert found == {key: one.ids for key, one in enumerate(alone[:3])}
        assert shortage.left == [0] * times
