"""The server's end, with real engine processes that run the fake engine."""

import asyncio
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from asr_server import feature_list
from asr_server.core.errors import DeadlineExceeded, EngineFailed, ShuttingDown, TranscriptionFailed
from asr_server.core.settings import Settings
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.client import EngineClient
from asr_server.engine.protocol import AlignItem, Utterance
from asr_server.engine_core import Watch
from asr_server.features.engine_process import client
from asr_server.schedule.job import DEFAULT, Priority
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import JobEnd, SchedulerObserver

pytestmark = pytest.mark.timeout(120)

WORDS = "one two three four five six seven eight nine ten"
SLOW = {"words_per_s": 5, "step_s": 0.1}
QUICK = {"words_per_s": 5}


class _Seen(SchedulerObserver):
    """An observer of jobs, loads and steps, which keeps what it is told."""

    def __init__(self):
        self.begun, self.ends, self.steps, self.states = [], [], 0, []

    def started(self, job):
        self.begun.append(job.key)

    def ended(self, job, end, value=None):
        self.ends.append((job.key, end))

    def stepped(self, rows, took_s):
        self.steps += 1


class _Running:
    """An engine process, its server's end, and what was observed."""

    def __init__(self, tmp_path, script, **settings):
        self.script = tmp_path / "script.json"
        self.write(script)
        chosen = Settings(
            _env_file=None, model_id="fake", fake_engine_script=self.script, state_dir=tmp_path, engine_process=True
        ).model_copy(update=settings)
        resolved = feature_list.resolve(chosen, Capabilities(gpu=False, torch_cuda=False))
        self.seen = _Seen()
        watch = Watch(self.seen, lambda model, state, took_s: self.seen.states.append(state))
        self.core = client.build(chosen, resolved, watch)
        self.engine = EngineClient(self.core.thread, resolved.traits)

    def write(self, script):
        fresh = self.script.with_suffix(".new")
        fresh.write_text(script if isinstance(script, str) else json.dumps(script))
        fresh.replace(self.script)

    def ask(self, *, seconds=2, **options):
        """Begin to transcribe; returns the stream."""
        item = Utterance(np.full(seconds * 16_000, 0.5, np.float32), **options)
        return self.engine.stream(item, priority=Priority.INTERACTIVE)

    async def until(self, holds):
        async with asyncio.timeout(60):
            while not holds(self.core.thread.snapshot()):  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.01)

    async def loaded(self):
        await asyncio.wrap_future(self.core.thread.load())
        return _process()


def _process():
    """Return the id of the engine process, None while there is none."""
    own = os.getpid()
    for child in Path(f"/proc/{own}/task/{own}/children").read_text().split():
        try:
            if b"engine_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        except FileNotFoundError:  # it has just ended
            continue
    return None


@pytest.fixture
async def start(tmp_path):
    """Return a function that starts an engine process with a script of the fake engine."""
    running = []

    def start(script, **settings):
        running.append(_Running(tmp_path, script, **settings))
        return running[-1]

    yield start
    for one in running:
        await asyncio.to_thread(one.core.thread.close)
    assert _process() is None


async def test_answers_alignments_and_times_are_those_of_the_process(start):
    """The clock of both is the same, so that the times of a job add up."""
    process = start(QUICK)
    stream = process.ask(stream=True)
    assert "".join([piece async for piece in stream]) == WORDS
    answer = await stream.result()
    assert (answer.hypothesis.text, answer.end) == (WORDS, 32_000)
    assert min(answer.queue_s, answer.infer_s, answer.load_s) >= 0
    span = AlignItem(np.zeros(16_000, np.float32), "two words", "English")
    placed = await process.engine.align(span, priority=Priority.INTERACTIVE)
    assert [piece.text for piece in placed.pieces] == ["two", "words"]
    await process.until(lambda _: process.seen.steps)
    assert process.seen.states == [ModelState.LOADING, ModelState.LOADED]
    assert process.core.thread.with_recordings_s > 0
    assert process.core.engines[DEFAULT].info.slots == 8


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
async def test_rows_go_on_in_the_next_process(start, end):
    """Rows go on with the words that were handed out, waiting ones as they are: no word is lost, doubled or changed.
    So they do where an operator ends the process."""
    process = start(SLOW)
    pid = await process.loaded()
    streams = [process.ask(stream=True) for _ in range(10)]  # two more than the batch has room for
    told = [[] for _ in streams]

    async def read(number):
        told[number] += [piece async for piece in streams[number]]

    readers = [asyncio.create_task(read(number)) for number in range(10)]
    await process.until(lambda _: len(told[0]) >= 3)
    os.kill(pid, end)
    await asyncio.gather(*readers)
    answers = [await stream.result() for stream in streams]
    assert {answer.hypothesis.text for answer in answers} == {"".join(pieces) for pieces in told} == {WORDS}
    assert _process() != pid
    assert [end for _, end in process.seen.ends] == [JobEnd.DONE] * 10
    assert len(process.seen.begun) == 10


@pytest.mark.nightly
async def test_models_and_leases_are_in_the_next_process_too(start):
    """A model that was loaded is loaded again, before anybody asks, and stays while it is leased."""
    process = start(QUICK, idle_timeout=0.2)
    with process.core.thread.lease(live=True):
        os.kill(await process.loaded(), signal.SIGKILL)
        await process.until(lambda snapshot: snapshot.state is ModelState.UNLOADED)
        await process.until(lambda snapshot: snapshot.state is ModelState.LOADED)
        await asyncio.sleep(0.6)
        assert process.core.thread.snapshot().state is ModelState.LOADED
    await process.until(lambda snapshot: snapshot.state is ModelState.UNLOADED)


@pytest.mark.nightly
async def test_a_row_that_ends_every_process_fails_and_no_other(start):
    """The row is tried in three processes. Rows that never were in a batch with it are answered."""
    fatal = {"context": "fatal", "fault": "fatal", "after_tokens": 1}
    process = start({**QUICK, "step_s": 0.02, "rules": [fatal]}, max_batch=1)
    await process.loaded()
    bad = process.ask(context="fatal")
    good = [process.ask() for _ in range(3)]
    with pytest.raises(TranscriptionFailed):
        await bad.result()
    assert {(await stream.result()).hypothesis.text for stream in good} == {WORDS}


@pytest.mark.nightly
async def test_a_process_that_does_not_stay_up_is_given_up_for_a_while(start):
    """All who wait get the reason, and so does who comes then; the state names it, for `/livez`."""
    process = start("no script")
    with pytest.raises(EngineFailed, match="engine process"):
        await process.ask().result()
    assert process.core.thread.snapshot().failure
    with pytest.raises(EngineFailed, match="engine process"):
        process.ask()


@pytest.mark.nightly
async def test_a_process_that_a_signal_has_stopped_is_replaced(start):
    """Nothing of it moves, so nothing of it can say so. Its row goes on."""
    process = start(SLOW, engine_hang_s=0.5)
    pid = await process.loaded()
    stream = process.ask(stream=True)
    first = await anext(stream)
    os.kill(pid, signal.SIGSTOP)
    rest = [piece async for piece in stream]
    assert "".join([first, *rest]) == WORDS
    assert _process() != pid


@pytest.mark.nightly
async def test_a_process_that_says_nothing_is_replaced(start):
    """A native call keeps its interpreter's lock, so that not even its event loop moves."""
    process = start({"load_freeze_s": 1_000.0}, engine_hang_s=0.5, request_timeout=0.5)
    stream = process.ask()
    await process.until(lambda snapshot: snapshot.loading)
    pid = _process()
    process.write(QUICK)
    assert (await stream.result()).hypothesis.text == WORDS
    assert _process() != pid


@pytest.mark.nightly
async def test_a_process_whose_engine_hangs_is_replaced(start, tmp_path):
    """Its event loop goes on, and publishes that the engine does not."""
    hang = {"fault": "hang", "hang_s": 1_000, "after_tokens": 3, "once_file": str(tmp_path / "once")}
    process = start({**SLOW, "rules": [hang]}, engine_hang_s=0.5)
    pid = await process.loaded()
    stream = process.ask(stream=True)
    assert "".join([piece async for piece in stream]) == WORDS
    assert _process() != pid


async def test_a_row_is_late_by_the_clock_of_the_process(start):
    """Its deadline passes while it is worked on."""
    process = start(SLOW)
    await process.loaded()
    item = Utterance(np.full(32_000, 0.5, np.float32))
    deadline_s = process.engine.clock.now_s() + 0.3
    with pytest.raises(DeadlineExceeded):
        await process.engine.transcribe(item, priority=Priority.INTERACTIVE, deadline_s=deadline_s)
    assert [end for _, end in process.seen.ends] == [JobEnd.EXPIRED]


async def test_deadlines_wait_for_a_process_that_starts_and_a_model_that_loads(start):
    """Who asked in time is answered, although the load alone takes longer than the request may."""
    process = start({**QUICK, "load_s": 2.0})
    item = Utterance(np.full(32_000, 0.5, np.float32), stream=True)
    deadline_s = process.engine.clock.now_s() + 0.9
    stream = process.engine.stream(item, priority=Priority.INTERACTIVE, deadline_s=deadline_s)
    assert "".join([piece async for piece in stream]) == WORDS  # by the clock of the server
    assert (await stream.result()).hypothesis.text == WORDS  # by that of the process


async def test_a_cancelled_row_leaves_the_process(start):
    """The batch is free again, and the caller's leaving is observed once."""
    process = start(SLOW)
    await process.loaded()
    stream = process.ask()
    await process.until(lambda snapshot: snapshot.running == 1)
    stream.cancel()
    await process.until(lambda snapshot: snapshot.running == 0)
    assert [end for _, end in process.seen.ends] == [JobEnd.CANCELLED]


async def test_at_the_end_rows_fail_and_the_process_is_gone(start):
    """Nothing is accepted any more."""
    process = start(SLOW)
    await process.loaded()
    stream = process.ask()
    await asyncio.to_thread(process.core.thread.close)
    with pytest.raises(ShuttingDown):
        await stream.result()
    with pytest.raises(ShuttingDown):
        process.ask()
    assert _process() is None
