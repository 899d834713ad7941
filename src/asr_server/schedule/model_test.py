"""Several models on one engine thread, driven turn by turn with scripted batches."""

from types import SimpleNamespace

import pytest

from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable, TranscriptionFailed
from asr_server.schedule.conftest import Scripted
from asr_server.schedule.job import RECORDINGS_SHARE, Job, Priority
from asr_server.schedule.thread import EngineThread

IDLE_S = 10.0


class Sharing(Scripted):
    """A batch whose model shares the memory with others. `raises`: loading fails by itself if it does not fit."""

    def __init__(self, name, memory, raises=False):
        super().__init__(2, name)
        self.name, self.memory, self.raises, self.error, self.tries = name, memory, raises, None, 0

    @property
    def loaded(self):
        return self.name in self.memory.loaded

    @property
    def fits(self):
        return self.raises or len(self.memory.loaded) < self.memory.fits

    def load(self):
        self.tries += 1
        if self.error:
            raise self.error
        if len(self.memory.loaded) >= self.memory.fits:
            raise EngineOutOfMemory("too many")
        self.memory.loaded.add(self.name)
        self.memory.log.append(f"+{self.name}")

    def unload(self):
        self.memory.loaded.remove(self.name)
        self.memory.log.append(f"-{self.name}")

    def step(self, begin_s=None):
        self.memory.log.append(self.name)
        self.memory.on_step()
        return super().step(begin_s)


class Bench:
    """A thread with the default model "a" and others, on a clock of its own."""

    def __init__(self, names="ab", fits=9, raises=False):
        self.now_s = 1.0
        # What was done with the models is logged in order.
        self.memory = SimpleNamespace(fits=fits, loaded=set(), log=[], on_step=lambda: None)
        self.batches = {name: Sharing(name, self.memory, raises) for name in names}
        others, options = dict(self.batches), {"idle_timeout_s": IDLE_S, "live_reserve": 1, "start": False}
        self.thread = EngineThread(others.pop("a"), others=others, clock=lambda: self.now_s, **options)

    def submit(self, model, steps=0, priority=Priority.INTERACTIVE, **values):
        return self.thread.submit(Job(steps, priority, model="" if model == "a" else model, **values))

    def run(self, *models):
        """Run one job for each, one after the other, a second apart."""
        for model in models:
            future = self.submit(model)
            self.thread.turn()
            assert future.result(0) == model
            self.now_s += 1


def test_a_sentence_that_somebody_waits_for_goes_before_bulk_work_of_another_model():
    """Bulk work waits while it is above its share of the engine's time, and then gets its share."""
    bench = Bench()
    bench.memory.on_step = lambda: setattr(bench, "now_s", bench.now_s + 0.25)
    bench.submit("a", 1000, Priority.BULK)
    for _ in range(20):
        bench.thread.turn()
    spoken = bench.submit("b", 200)
    bench.memory.log.clear()
    while not spoken.done():
        bench.thread.turn()
    order = [name for name in bench.memory.log if name in "ab"]
    assert order[:30] == ["b"] * 30
    assert order[40:].count("a") / len(order[40:]) == pytest.approx(RECORDINGS_SHARE, abs=0.02)


def test_a_model_without_a_free_slot_keeps_no_other_waiting():
    """A job for that model waits alone, and keeps its place."""
    bench = Bench()
    waiting = [bench.submit("a", 5) for _ in range(3)]
    late = bench.submit("b")
    bench.thread.turn()
    assert late.result(0) == "b"
    assert len(bench.batches["a"].rows) == 1  # one slot is kept for live work
    assert not any(future.done() for future in waiting)


def test_the_model_with_the_most_urgent_row_moves_first():
    """Finals before partials before recordings. While there is live work the models divide the time to begin rows."""
    bench = Bench("abc")
    bench.submit("b", 9, Priority.BULK)
    bench.thread.turn()
    bench.submit("a", 9)
    bench.submit("c", 9, Priority.PARTIAL)
    bench.submit("b", 9, Priority.FINAL)
    bench.thread.turn()
    assert bench.memory.log[-3:] == ["b", "c", "a"]
    assert bench.batches["a"].begin_s == [pytest.approx(0.25 / 3)]


def test_the_queue_is_one_for_all_models():
    """A job that continues an earlier one does not wait again for one of another model."""
    bench = Bench()
    bench.submit("a")
    bench.now_s += 1
    bench.submit("b", queued_s=0.5)
    bench.thread.turn()
    assert bench.memory.log[:2] == ["+b", "+a"]


def test_each_model_idles_by_its_own_rule():
    """A model's timer counts from its own last work or lease, whatever the others do."""
    bench = Bench()
    bench.run("a", "b")
    with bench.thread.lease(model="b"):
        for _ in range(3):
            bench.now_s += IDLE_S / 2
            bench.run("a")
        assert bench.memory.loaded == {"a", "b"}
        bench.now_s += IDLE_S
        bench.thread.turn()
        assert bench.memory.loaded == {"b"}
    bench.now_s += IDLE_S
    bench.thread.turn()
    assert bench.memory.loaded == set()


@pytest.mark.parametrize("raises", [False, True], ids=["known before", "noticed while loading"])
def test_where_memory_is_short_the_least_recently_used_model_goes(raises):
    """One model goes at a time, and it comes back when it is asked for."""
    bench = Bench("abc", fits=2, raises=raises)
    bench.run("a", "b", "a", "c", "b")
    assert [entry for entry in bench.memory.log if len(entry) == 2] == ["+a", "+b", "-b", "+c", "-a", "+b"]


def test_a_model_with_rows_is_never_unloaded_for_another():
    """The model that does not fit fails, alone, where every other has rows."""
    bench = Bench("ab", fits=1, raises=True)
    first = bench.submit("a", 1)
    bench.thread.turn()
    second = bench.submit("b")
    bench.thread.turn()
    assert isinstance(second.exception(0), EngineOutOfMemory)
    assert first.result(0) == "a"
    bench.run("b")


def test_a_failed_load_fails_only_what_waits_for_that_model():
    """Other models continue. Every job that waits for the failed one gets the error, whatever its class."""
    bench = Bench()
    bench.batches["b"].error = ModelUnavailable("no weights")
    lost, kept = [bench.submit("b", priority=priority) for priority in Priority], bench.submit("a")
    bench.thread.turn()
    bench.thread.turn()
    assert {type(future.exception(0)) for future in lost} == {ModelUnavailable}
    assert kept.result(0) == "a"
    assert bench.batches["b"].tries == 1
    assert bench.thread.snapshot().models["b"].load_error == "no weights"
    assert bench.thread.snapshot().load_error == ""


def test_what_fails_or_is_left_in_one_model_costs_no_other():
    """A cancelled row leaves its batch, and a broken step fails its own rows."""
    bench = Bench()
    gone, kept = bench.submit("b", 5), bench.submit("a", 5)
    bench.thread.turn()
    gone.cancel()
    broken = bench.submit("b", "explode")
    bench.thread.turn()
    assert isinstance(broken.exception(0), TranscriptionFailed)
    assert (len(bench.batches["a"].rows), len(bench.batches["b"].rows)) == (1, 0)
    assert not kept.done()
