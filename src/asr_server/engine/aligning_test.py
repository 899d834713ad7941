"""An engine and an aligner on one thread. Both are scripted: faults and times are injected, as no real one does."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.conftest import Clock
from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable, UnsupportedLanguage
from asr_server.engine.aligning import RETRY_S, AligningEngine
from asr_server.engine.protocol import AlignerState, AlignItem, Alignment, EngineInfo, Utterance
from asr_server.schedule.conftest import Scripted
from asr_server.schedule.job import RequestClock
from asr_server.schedule.model import RowDone, RowFailed

AUDIO = np.zeros(16_000, np.float32)
SPOKEN = Utterance(AUDIO)


class Transcriber(Scripted):
    """Each step takes `step_s` of the clock."""

    info = EngineInfo("scripted", "none", "cpu", "float32")

    def __init__(self, clock, rows=8):
        super().__init__(rows)
        self.clock, self.step_s, self.loaded = clock, 0.0, True

    def admit(self, key, item, urgent=False):
        super().admit(key, 10**9)  # steps, more than any test makes

    def step(self, begin_s=None):
        self.clock.now_s += self.step_s
        yield from super().step(begin_s)


class Words:
    """An aligner whose items cost as many tokens as their text says; "bad" is refused."""

    aligner_id = "scripted"

    def __init__(self, clock):
        self.clock, self.loaded, self.pass_s, self.parts = clock, False, 0.0, 1
        self.passes, self.loads = [], 0
        self.gate = threading.Event()
        self.gate.set()
        self.faults = {}  # by the method that raises them, once

    def locate(self):
        assert self.gate.wait(10)
        if error := self.faults.pop("locate", None):
            raise error

    def load(self):
        self.loads += 1
        if error := self.faults.pop("load", None):
            raise error
        self.loaded = True

    def unload(self):
        self.loaded = False

    def cost(self, item):
        return int(item.text) if item.text.isdigit() else 1

    def align(self, items):
        self.passes.append([item.text for item in items])
        for part in range(self.parts):
            self.clock.now_s += self.pass_s / self.parts
            if part < self.parts - 1:
                yield None
        yield [UnsupportedLanguage("bad") if item.text == "bad" else Alignment(()) for item in items]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def transcriber(clock):
    return Transcriber(clock)


@pytest.fixture
def words(clock):
    return Words(clock)


@pytest.fixture
def engine(transcriber, words, clock):
    made = AligningEngine(transcriber, words, pass_tokens=100, idle_timeout_s=10.0, clock=clock)
    made.load()
    return made


def _item(text="1"):
    return AlignItem(AUDIO, text, "English")


def _ended(engine, steps=200):
    """Return the outcomes of that many steps, by key."""
    found = {}
    for _ in range(steps):
        found |= {o.key: o for o in engine.step() if isinstance(o, RowDone | RowFailed)}
    return found


def _ready(engine):
    """The aligner loaded by a first alignment."""
    engine.admit(0, _item())
    assert isinstance(_ended(engine)[0], RowDone)
    return engine


def test_the_aligner_is_loaded_by_the_first_alignment_and_rows_and_items_end_as_what_they_are(
    engine, words, transcriber
):
    """Transcription never loads it. The step that loads it makes no pass, so the thread shows that it moves."""
    engine.admit(0, SPOKEN)
    transcriber.rows[0] = 1
    assert _ended(engine)[0].value == "done"
    assert (words.loads, engine.info.aligner_state) == (0, AlignerState.UNLOADED)
    for key, text in enumerate(("1", "bad", "1"), 1):
        engine.admit(key, _item(text))
    while engine.info.aligner_state is not AlignerState.LOADED:
        list(engine.step())
    assert (words.loads, words.passes) == (1, [])
    ended = _ended(engine)
    assert isinstance(ended[2].error, UnsupportedLanguage)
    assert ended[1].value == ended[3].value == Alignment(())


def test_transcription_goes_on_while_the_aligner_is_fetched(engine, words, transcriber):
    """Rows have all their places and move with every step. A wait of nobody is no load, in which a hang may last."""
    words.gate.clear()
    engine.admit(1, _item())
    list(engine.step())
    assert engine.info.aligner_state is AlignerState.LOADING
    engine.drop(1)
    assert engine.info.aligner_state is AlignerState.UNLOADED
    engine.admit(0, SPOKEN)
    for key in range(1, 21):
        engine.admit(key, _item("50"))
    for _ in range(50):
        assert [o.key for o in engine.step()] == [0]
    assert engine.info.aligner_state is AlignerState.LOADING
    assert engine.free_slots == transcriber.free_slots == 7
    words.gate.set()
    assert set(_ended(engine, 10_000)) == set(range(1, 21))
    assert transcriber.rows


@pytest.mark.parametrize("where", ["locate", "load"])
@pytest.mark.parametrize("error", [ModelUnavailable("no weights"), EngineOutOfMemory("full"), RuntimeError("odd")])
def test_a_failed_aligner_costs_only_alignments_and_is_tried_again_after_a_while(engine, words, clock, where, error):
    """Everybody who waits gets the reason. For a minute alignments are refused at once, without another download."""
    words.faults[where] = error
    for key, item in enumerate((SPOKEN, _item(), _item()), 1):
        engine.admit(key, item)
    ended = _ended(engine, 10_000)
    assert {key: type(o) for key, o in ended.items()} == {2: RowFailed, 3: RowFailed}
    assert all(isinstance(o.error, ModelUnavailable | EngineOutOfMemory) for o in ended.values())
    assert engine.info.aligner_state is AlignerState.FAILED
    assert engine.info.aligner_error
    assert [o.key for o in engine.step()] == [1]
    clock.now_s += RETRY_S - 1
    with pytest.raises((ModelUnavailable, EngineOutOfMemory)) as refused:
        engine.admit(4, _item())
    assert refused.value.message == engine.info.aligner_error
    clock.now_s += 2
    engine.admit(5, _item())
    assert isinstance(_ended(engine, 10_000)[5], RowDone)
    assert engine.info.aligner_error == ""


@given(st.lists(st.integers(1, 150), min_size=1, max_size=30))
def test_a_pass_stays_within_its_tokens_and_keeps_the_order(costs):
    """No pass takes more than its tokens, but for a single item that is longer; all end, the oldest first."""
    clock = Clock()
    words = Words(clock)
    engine = _ready(AligningEngine(Transcriber(clock, rows=4), words, pass_tokens=100, idle_timeout_s=0.0, clock=clock))
    words.passes.clear()
    waiting, ended = list(enumerate(costs, 1)), []
    while len(ended) < len(costs):
        while waiting and engine.free_slots > 0:
            key, cost = waiting.pop(0)
            engine.admit(key, _item(str(cost)))
        ended += [o.key for o in engine.step()]
    assert ended == list(range(1, len(costs) + 1))
    for taken in words.passes:
        assert len(taken) == 1 or sum(map(int, taken)) <= 100


@given(st.integers(1, 50), st.integers(1, 50))
def test_the_aligner_takes_about_half_of_the_time_beside_rows(step_ms, pass_ms):
    """However long a pass and a step are, rows get as much time as the aligner, to within one pass and one step."""
    clock = Clock()
    words, transcriber = Words(clock), Transcriber(clock, rows=1000)
    engine = _ready(AligningEngine(transcriber, words, pass_tokens=100, idle_timeout_s=0.0, clock=clock))
    words.passes.clear()
    transcriber.begin_s.clear()
    words.pass_s, transcriber.step_s = pass_ms / 1000, step_ms / 1000
    engine.admit(-1, SPOKEN)
    for key in range(1, 400):
        engine.admit(key, _item("100"))
    for _ in range(300):
        list(engine.step())
        assert len(words.passes) * pass_ms <= len(transcriber.begin_s) * step_ms + pass_ms
    assert len(words.passes) * (pass_ms + step_ms) >= min(300 * step_ms, 300 * pass_ms) - pass_ms


def test_the_aligner_is_unloaded_on_its_own_clock_and_with_the_model(engine, words, clock, transcriber):
    """Rows at work do not keep it. Its idle time begins with its last pass, and not with its load."""
    _ready(engine)
    engine.admit(9, SPOKEN)
    for key in range(1, 5):
        clock.now_s += 6
        assert engine.poll_idle() == pytest.approx(4.0)
        engine.admit(key, _item())
        assert isinstance(_ended(engine)[key], RowDone)
    assert (words.loads, words.loaded) == (1, True)
    clock.now_s += 60
    engine.admit(5, _item())
    assert engine.poll_idle() is None
    assert words.loaded
    _ended(engine)
    clock.now_s += 11
    list(engine.step())
    assert engine.poll_idle() is None
    assert not words.loaded
    assert transcriber.loaded
    assert engine.info.aligner_state is AlignerState.UNLOADED
    _ready(engine).unload()
    assert not words.loaded
    assert not engine.loaded


def test_a_shared_aligner_is_unloaded_with_the_last_of_its_models(engine, words, clock):
    other = AligningEngine(Transcriber(clock), words, pass_tokens=100, idle_timeout_s=10.0, clock=clock, beside=engine)
    _ready(other)
    engine.unload()
    assert words.loaded
    other.unload()
    assert not words.loaded


def test_alignments_of_a_whole_pass_keep_others_out(engine, words, transcriber):
    """Later requests would wait for them. A caller that leaves frees its place."""
    engine.admit(1, _item("60"))
    engine.admit(2, SPOKEN)
    assert engine.free_slots == transcriber.free_slots - 1 == 6
    engine.admit(3, _item("40"))
    assert (engine.free_slots, engine.urgent_slots) == (0, 7)
    for key in range(1, 5):
        engine.drop(key)
    assert engine.free_slots == 8
    assert (_ended(engine), words.passes) == ({}, [])


@pytest.mark.parametrize("where", ["locate", "load"])
def test_no_time_limit_passes_while_the_aligner_is_fetched(transcriber, words, clock, where):
    """Neither while it is found, on a thread of its own, nor while it is loaded."""
    limits = RequestClock(clock=clock)
    engine = AligningEngine(transcriber, words, pass_tokens=100, idle_timeout_s=10.0, request_clock=limits, clock=clock)
    engine.load()
    real, before_s = getattr(words, where), limits.now_s()

    def slow():
        clock.now_s += 300
        real()

    setattr(words, where, slow)
    engine.admit(1, _item())
    assert isinstance(_ended(engine, 10_000)[1], RowDone)
    assert (clock.now_s, limits.now_s()) == (1_300.0, before_s)


def test_rows_go_on_between_the_parts_of_a_pass(engine, words, clock, transcriber):
    """Live work waits for one part, not for the pass; the times come with the last part."""
    words.loaded, words.parts, words.pass_s, transcriber.step_s = True, 5, 5.0, 1.0
    engine.admit(1, SPOKEN)
    engine.admit(2, _item("7"))
    steps, done = [], False
    for _ in range(40):
        before_s, outcomes = clock.now_s, list(engine.step())
        steps.append(clock.now_s - before_s)
        done = done or any(isinstance(one, RowDone) and one.key == 2 for one in outcomes)
    assert done
    assert words.passes == [["7"]]
    assert max(steps) == 2.0


def test_who_leaves_during_a_pass_gets_nothing_and_the_others_theirs(engine, words, clock):
    """Once nobody waits for a pass, its other parts are not made, and the aligner is idle."""
    words.loaded, words.parts = True, 3
    for key in (1, 2):
        engine.admit(key, _item("7"))
    outcomes = list(engine.step())
    engine.drop(1)
    for _ in range(3):
        outcomes += engine.step()
    assert [(type(one), one.key) for one in outcomes] == [(RowDone, 2)]
    engine.admit(3, _item("7"))
    assert list(engine.step()) == []
    engine.drop(3)
    clock.now_s += 11
    assert engine.poll_idle() is None
    assert not words.loaded
