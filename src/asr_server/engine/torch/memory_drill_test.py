"""Memory that runs out in the middle of a pass, at the border to torch: what is freed, tried again, and who is hurt."""

import weakref

import pytest
import torch

from asr_server.engine.conftest import ends, loaded_qwen
from asr_server.engine.memory import PrefillPolicy
from asr_server.engine.protocol import Utterance
from asr_server.engine.torch.language_model import TorchOperations
from asr_server.schedule.model import RowDone

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


def test_what_is_kept_of_sessions_is_given_back_first(clips, alone, monkeypatch):
    """The pass is run again with all of its rows, and succeeds. Only if it fails again do fewer decode together."""
    # On a busy machine the first step would begin some of the rows, and the counts be others.
    monkeypatch.setattr(PrefillPolicy, "tokens", lambda policy, begin_s: 100_000)
    heads, faults, failed, left = TorchOperations.heads, [], [], []

    def short(operations, qkv, *given):
        left.extend(one() for one in failed)  # None if nothing keeps the tensors of the pass that failed
        failed.clear()
        if faults:
            failed.append(weakref.ref(qkv))
            raise faults.pop()
        return heads(operations, qkv, *given)

    monkeypatch.setattr(TorchOperations, "heads", short)
    engine, found = loaded_qwen(rows=8), {}
    for times, rows in ((1, 3), (2, 1)):
        ends(engine, Utterance(clips[3][: 9 * 16_000], session="speaker"))
        assert len(engine.runtime.prefix_cache) > 0
        for key, clip in enumerate(clips[:3]):
            engine.admit(key, Utterance(clip))
        list(engine.step())
        faults += [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.") for _ in range(times)]
        list(engine.step())
        assert not faults
        assert len(engine.runtime.prefix_cache) == 0
        assert len(engine.runtime.decoder.rows) == rows
        found.clear()
        while len(found) < 3:
            found |= {one.key: one.value.ids for one in engine.step() if isinstance(one, RowDone)}
        assert found == {key: one.ids for key, one in enumerate(alone[:3])}
    assert left == [None] * 3
