"""Memory that runs out in the middle of a pass, at the border to torch: what is freed, tried again, and who is hurt."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from asr_server.core.errors import EngineOutOfMemory
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine, RowLimit
from asr_server.schedule.ports import RowDelta

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


def _on_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")


def _in_numpy():
    raise MemoryError


def _on_cpu():
    torch.empty(1 << 50, dtype=torch.uint8)


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
        before = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        # Not the places of the pass: the cache keeps those of the last one.
        noted = self.times and isinstance(result, torch.Tensor) and result.dtype != torch.long
        if noted and result.untyped_storage()._cdata not in before:
            self.made.append(StorageWeakRef(result.untyped_storage()))
        return result


@pytest.fixture(scope="module")
def loaded():
    made = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 8, 0, ()))
    made.load()
    return made


@pytest.fixture
def engine(loaded, monkeypatch):
    monkeypatch.setattr(loaded, "_row_limit", RowLimit(8))
    # On a busy machine the first step would begin some of the rows, and the counts be others.
    monkeypatch.setattr(loaded._runtime.prefill_policy, "tokens", lambda begin_s: 100_000)
    return loaded


def _ends(engine, count):
    """The ids of all rows, or the errors of those that failed."""
    found = {}
    for _ in range(600):
        for outcome in engine.step():
            if not isinstance(outcome, RowDelta):
                found[outcome.key] = outcome.value.ids if hasattr(outcome, "value") else outcome.error
        if len(found) == count:
            return [found[key] for key in range(count)]
    raise AssertionError(found)


@pytest.mark.parametrize(("fail", "at"), [(_on_gpu, 120), (_in_numpy, 3), (_on_cpu, 60)])
def test_a_failed_pass_is_gone_before_the_next_one(engine, clips, alone, fail, at):
    """Everything that it had made is gone; then fewer rows decode together, and each has the ids that it has alone."""
    with Shortage(fail) as shortage:
        for key, clip in enumerate(clips):
            engine.admit(key, Utterance(clip))
        list(engine.step())
        seated = len(engine._runtime.decoder.rows)
        shortage.begin(at)
        list(engine.step())
        assert shortage.times == 0
        assert len(engine._runtime.decoder.rows) <= seated / 2
        assert _ends(engine, len(clips)) == [one.ids for one in alone]
    assert shortage.left == [0]


def test_what_is_kept_of_sessions_is_given_back_first(engine, clips, alone):
    """The pass is run again with all of its rows, and succeeds. Only if it fails again do fewer decode together."""
    long = clips[3]
    engine.admit(0, Utterance(long, session="speaker"))
    _ends(engine, 1)
    for times, rows in ((1, 3), (2, 1)):
        engine.admit(0, Utterance(long[: 9 * 16_000], session="another"))
        _ends(engine, 1)
        assert len(engine._runtime.prefix_cache) > 0
        with Shortage(_on_gpu) as shortage:
            for key in range(3):
                engine.admit(key, Utterance(clips[key]))
            list(engine.step())
            shortage.begin(60, times)
            list(engine.step())
            assert shortage.times == 0
            assert len(engine._runtime.prefix_cache) == 0
            assert len(engine._runtime.decoder.rows) == rows
            assert _ends(engine, 3) == [one.ids for one in alone[:3]]
        assert shortage.left == [0] * times


def test_the_rows_come_back_when_there_is_memory_again(engine, clips, alone, run):
    """One row decodes alone after a shortage; some answers later eight do again."""
    with Shortage(_on_gpu) as shortage:
        for key in range(2):
            engine.admit(key, Utterance(clips[key]))
        list(engine.step())
        shortage.begin(60)
        list(engine.step())
        assert engine.free_slots == 0  # one place, taken, and another row waits for it
        assert _ends(engine, 2) == [one.ids for one in alone[:2]]
    for _ in range(40):
        if engine.free_slots == 8:
            break
        assert run(engine, [Utterance(clips[0])])[0].ids == alone[0].ids
    assert engine.free_slots == 8


def test_a_prompt_without_memory_fails_alone_and_leaves_nothing(engine, clips, alone):
    """Each try of its prefill is gone before the next; the row after it is served."""
    with Shortage(_on_cpu) as shortage:
        engine.admit(0, Utterance(clips[0]))
        shortage.begin(40, times=9)
        (error,) = _ends(engine, 1)
        shortage.begin(0, times=0)
        engine.admit(0, Utterance(clips[1]))
        assert _ends(engine, 1) == [alone[1].ids]
    assert isinstance(error, EngineOutOfMemory)
    assert shortage.left == [0]


def test_the_first_passes_belong_to_the_load():
    """Memory that is short for them is memory that is short for the model."""
    engine = QwenEngine(Plan("qwen", "demo", "cpu", "float32", 8, 0, ()))
    engine.load()
    engine.unload()
    with Shortage(_on_cpu) as shortage:
        forward = engine._warm_up

        def warm_up(runtime):
            shortage.begin(100, times=9)
            forward(runtime)

        engine._warm_up = warm_up
        with pytest.raises(EngineOutOfMemory):
            engine.load()
        shortage.begin(0, times=0)
    assert not engine.loaded
