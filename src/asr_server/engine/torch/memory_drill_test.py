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


def _on_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")


class Shortage(TorchDispatchMode):
    """Memory runs out `times` times from `begin` on, each at the `at`-th operation of a pass.

    `left`: for each time, how many of the tensors that the pass had made were alive when the next operation ran.
    """

    def __init__(self, fail):
        super().__init__()
        self.fail, self.at, self.times, self.ran, self.left = fail, 0, 0, 0, []
        self.made, self.over = [], False

    def begin(self, at, times=1):
        self.at, self.times, self.ran, self.made = at, times, 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.over:
            self.left.append(sum(not storage.expired() for storage in self.made))
            self.made, self.ran, self.over = [], 0, False
        self.ran += 1
        if self.times and self.ran == self.at:
            self.times, self.over = self.times - 1, True
            self.fail()
        before = {StorageWeakRef(a.untyped_storage()) for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        # Not the places of the pass: the cache keeps those of the last one.
        noted = self.times and isinstance(result, torch.Tensor) and result.dtype != torch.long
        if noted and (made := StorageWeakRef(result.untyped_storage())) not in before:
            self.made.append(made)
        return result


@pytest.fixture
def engine(monkeypatch):
    # On a busy machine the first step would begin some of the rows, and the counts be others.
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, begin_s: 100_000)
    return loaded_qwen(rows=8)


def _admitted(engine, clips):
    for key, clip in enumerate(clips):
        engine.admit(key, Utterance(clip))
    list(engine.step())


def _rest(engine, count):
    """Return the ids of the rows that were admitted before."""
    found = {}
    while len(found) < count:
        found |= {one.key: one.value.ids for one in engine.step() if isinstance(one, RowDone)}
    return [found[key] for key in range(count)]


def test_what_is_kept_of_sessions_is_given_back_first(engine, clips, alone):
    """The pass is run again with all of its rows, and succeeds. Only if it fails again do fewer decode together."""
    for times, rows in ((1, 3), (2, 1)):
        ends(engine, Utterance(clips[3][: 9 * 16_000], session="speaker"))
        assert len(engine.runtime.prefix_cache) > 0
        with Shortage(_on_gpu) as shortage:
            _admitted(engine, clips[:3])
            shortage.begin(60, times)
            list(engine.step())
            assert shortage.times == 0
            assert len(engine.runtime.prefix_cache) == 0
            assert len(engine.runtime.decoder.rows) == rows
            assert _rest(engine, 3) == [one.ids for one in alone[:3]]
        assert shortage.left == [0] * times
