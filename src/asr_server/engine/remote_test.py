"""The server's end, with real engine processes that run the fake engine."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asr_server import feature_list
from asr_server.core.errors import DeadlineExceeded, EngineFailed, ShuttingDown, TranscriptionFailed
from asr_server.core.settings import Settings
from asr_server.engine import remote
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.client import EngineClient
from asr_server.engine.core import Watch
from asr_server.engine.protocol import AlignItem, Utterance
from asr_server.processes.supervisor import ProcessEnd
from asr_server.schedule.job import DEFAULT, JobEnd, Priority, SchedulerObserver
from asr_server.schedule.model import ModelState

pytestmark = pytest.mark.timeout(120)

WORDS = "one two three four five six seven eight nine ten"
SLOW = {"words_per_s": 5, "step_s": 0.05}
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
        chosen = Settings(_env_file=None, model_id="fake", state_dir=tmp_path, engine_process=True)
        chosen = chosen.model_copy(update=settings)
        resolved = feature_list.resolve(chosen, Capabilities(gpu=False, torch_cuda=False))
        self.seen = _Seen()
        watch = Watch(self.seen, lambda model, state, took_s: self.seen.states.append(state))
        self.core = remote.build(chosen, resolved, watch)
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
            if b"--socket" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        except FileNotFoundError:  # it has just ended
            continue
    return None


@pytest.fixture
async def start(tmp_path, monkeypatch):
    """Return a function that starts an engine process with a script of the fake engine."""
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(tmp_path / "script.json"))
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
    assert process.core.infos()[DEFAULT].slots == 8


@pytest.mark.slow("starts engine processes")
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


@pytest.mark.slow("starts engine processes")
async def test_in_gateway_mode_the_process_comes_with_a_row_and_goes_when_idle(start):
    """A lease keeps it. The next row starts another, which loads the model again."""
    process = start(QUICK, engine_process="auto", gateway_mode=True, idle_timeout=0.3)
    assert (_process(), process.core.thread.is_running) == (None, False)
    with process.core.thread.lease(live=True):
        assert (await process.ask().result()).hypothesis.text == WORDS
        assert process.core.thread.is_running
        pid = _process()
        await asyncio.sleep(1.5)
        assert _process() == pid
    await process.until(lambda _: _process() is None)
    await process.until(lambda snapshot: snapshot.state is ModelState.UNLOADED)
    await asyncio.sleep(0.3)
    assert (_process(), process.core.thread.is_running) == (None, False)
    assert (await process.ask().result()).hypothesis.text == WORDS
    assert process.seen.states[:3] == [ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADED]
    assert not process.core.thread.snapshot().failure


async def test_in_gateway_mode_an_engine_works_for_longer_than_its_idle_time(start):
    """Ten words take half a second here, by one process."""
    process = start(SLOW, engine_process="auto", gateway_mode=True, idle_timeout=0.15)
    stream = process.ask(stream=True)
    assert "".join([piece async for piece in stream]) == WORDS
    assert process.core.thread.ends[ProcessEnd.STOPPED] == 0


@pytest.mark.nightly
async def test_rows_that_come_while_the_idle_process_ends_are_answered(start):
    """At every moment of its end; each by a process that takes it."""
    process = start(QUICK, engine_process="auto", gateway_mode=True, idle_timeout=0.1)
    for number in range(20):
        await asyncio.sleep(0.1 + 0.01 * number)
        assert (await process.ask(stream=True).result()).hypothesis.text == WORDS


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


_HANG = {"fault": "hang", "hang_s": 1_000, "after_tokens": 3}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("script", "settings", "replaced"),
    [
        # A native call keeps its interpreter's lock, so that not even its event loop moves.
        ({"load_freeze_s": 1_000.0}, {"request_timeout": 0.5}, True),
        # Importing libraries can hold all of a process up, for longer than a hang may take.
        ({"load_freeze_s": 6.0}, {}, False),
        # Its event loop goes on, and publishes that the engine does not.
        ({**SLOW, "rules": [_HANG]}, {}, True),
    ],
    ids=["silent", "loading", "hanging"],
)
async def test_a_process_that_hangs_is_replaced_and_one_that_loads_is_waited_for(
    start, tmp_path, script, settings, replaced
):
    for rule in script.get("rules", ()):
        rule["once_file"] = str(tmp_path / "once")
    process = start({**QUICK, **script}, engine_hang_s=0.5, **settings)
    stream = process.ask(stream=True)
    await process.until(lambda snapshot: snapshot.loading or snapshot.running)
    pid = _process()
    if "rules" not in script:
        await asyncio.sleep(1.0)  # it has read its script
        process.write(QUICK)
    assert (await stream.result()).hypothesis.text == WORDS
    assert (_process() != pid) is replaced


async def test_a_row_is_late_by_the_clock_of_the_process(start):
    """Its deadline passes while it is worked on."""
    process = start(SLOW)
    await process.loaded()
    item = Utterance(np.full(32_000, 0.5, np.float32))
    deadline_s = process.engine.clock.now_s() + 0.2
    with pytest.raises(DeadlineExceeded):
        await process.engine.transcribe(item, priority=Priority.INTERACTIVE, deadline_s=deadline_s)
    assert [end for _, end in process.seen.ends] == [JobEnd.EXPIRED]


async def test_deadlines_wait_for_a_process_that_starts_and_a_model_that_loads(start):
    """Who asked in time is answered, although the load alone takes longer than the request may."""
    process = start({**QUICK, "load_s": 1.2})
    item = Utterance(np.full(32_000, 0.5, np.float32), stream=True)
    deadline_s = process.engine.clock.now_s() + 0.7
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


@pytest.fixture
def engine(tmp_path):
    """Return the setting that names the socket of an engine, and a function that starts one there."""
    path, engines = tmp_path / "engine.sock", []

    def run(**settings):
        environment = {
            **os.environ,
            "MODEL_ID": "fake",
            "FAKE_ENGINE_SCRIPT": str(tmp_path / "script.json"),
            **settings,
        }
        command = [sys.executable, "-m", "asr_server", "engine", "--listen", str(path)]
        engines.append(subprocess.Popen(command, env=environment, cwd=tmp_path))
        return engines[-1]

    yield f"unix:{path}", run
    for one in engines:
        one.kill()
        one.wait()


@pytest.mark.slow("starts engine processes")
@pytest.mark.parametrize(
    ("end", "times"),
    [
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGTERM, 3, marks=pytest.mark.nightly),
        pytest.param(signal.SIGKILL, 1, marks=pytest.mark.nightly),
    ],
)
async def test_rows_go_on_in_the_next_shared_engine(start, engine, end, times):
    """The engine is not a child of its servers, which were there before it. Each word is there once, although the
    engine has been away for a while, and however often an operator ends it."""
    place, run = engine
    servers = [start(SLOW, engine_process=place) for _ in range(2)]
    other, stream = [server.ask(stream=True) for server in servers]
    shared, told = run(), []
    for _ in range(times):
        await servers[1].until(lambda snapshot: snapshot.running)
        told.append(await anext(stream))
        assert (_process(), shared.poll()) == (None, None)
        shared.send_signal(end)
        assert await asyncio.to_thread(shared.wait, 20) == (0 if end is signal.SIGTERM else -end)
        await asyncio.sleep(0.3)
        shared = run()
    told += [piece async for piece in stream]
    assert "".join(told) == (await stream.result()).hypothesis.text == WORDS
    assert (await other.result()).hypothesis.text == WORDS
    assert all(server.core.thread.is_running for server in servers)


async def test_a_shared_engine_with_another_model_refuses_the_server(start, engine):
    """Requests get the reason, and so does `/readyz`; `/livez` does not, as another start would not help."""
    place, run = engine
    run(MAX_BATCH="3", MODEL_ID="fake-fast")
    server = start(QUICK, engine_process=place)
    with pytest.raises(EngineFailed, match="another MAX_BATCH, MODEL_ID"):
        await server.ask().result()
    snapshot = server.core.thread.snapshot()
    assert (snapshot.state, snapshot.failure) == (ModelState.FAILED, "")
    assert "another MAX_BATCH, MODEL_ID" in snapshot.load_error


@pytest.mark.slow("starts engine processes")
async def test_rows_wait_for_a_shared_engine_no_longer_than_a_start_may_take(start, engine, monkeypatch):
    """They fail with the reason; once it is there, rows are answered."""
    monkeypatch.setattr(remote, "START_S", 0.3)
    place, run = engine
    server = start(QUICK, engine_process=place)
    with pytest.raises(EngineFailed, match="asr-server engine"):
        await server.ask().result()
    assert server.core.thread.snapshot().state is ModelState.FAILED
    run()
    await server.until(lambda snapshot: snapshot.state is not ModelState.FAILED)
    assert (await server.ask().result()).hypothesis.text == WORDS


async def test_a_shared_engine_loads_at_its_start_and_unloads_when_idle(start, engine):
    """By its own PRELOAD and IDLE_TIMEOUT; the process stays."""
    place, run = engine
    server = start(QUICK, engine_process=place)
    shared = run(PRELOAD="true", IDLE_TIMEOUT="0.5")
    await server.until(lambda snapshot: snapshot.state is ModelState.LOADED)
    await server.until(lambda snapshot: snapshot.state is ModelState.UNLOADED)
    assert server.core.thread.is_running
    assert shared.poll() is None


@pytest.mark.nightly
async def test_a_shared_engine_that_hangs_ends(start, engine, tmp_path):
    """Whatever runs it starts the next one, which gets its rows."""
    place, run = engine
    hang = {**_HANG, "once_file": str(tmp_path / "once")}
    server = start({**SLOW, "rules": [hang]}, engine_process=place)
    shared = run(ENGINE_HANG_S="0.5")
    stream = server.ask()
    assert await asyncio.to_thread(shared.wait, 60) == 70
    run()
    assert (await stream.result()).hypothesis.text == WORDS


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
