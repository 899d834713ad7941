"""Servers at the socket of an engine of this process; and engine processes, where only they can show it."""

import asyncio
import json
import os
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from asr_server import feature_list
from asr_server.core.conftest import raises, until
from asr_server.core.errors import DeadlineExceeded, EngineFailed, ShuttingDown, TranscriptionFailed
from asr_server.core.settings import Settings
from asr_server.engine import remote, wire
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.client import EngineClient
from asr_server.engine.core import Watch
from asr_server.engine.protocol import AlignItem, Utterance
from asr_server.engine.serve import EngineServer, ServerConnection
from asr_server.processes.supervisor import ProcessEnd
from asr_server.schedule.job import DEFAULT, JobEnd, Priority, SchedulerObserver
from asr_server.schedule.model import ModelState
from E2Etest.drive.procfs import engine_of

WORDS = "one two three four five six seven eight nine ten"
QUICK = {"words_per_s": 5}
SLOW = {**QUICK, "step_s": 0.05}
SPEECH = np.full(2 * 16_000, 0.5, np.float32)


def _resolved(state_dir, **settings):
    chosen = Settings(_env_file=None, model_id="fake", state_dir=state_dir).model_copy(update=settings)
    return chosen, feature_list.resolve(chosen, Capabilities(gpu=False, torch_cuda=False))


class _Server:
    """A server's end, and what was observed."""

    def __init__(self, state_dir, **settings):
        chosen, resolved = _resolved(state_dir, **settings)
        self.seen, self.states = Mock(spec=SchedulerObserver), []
        watch = Watch(self.seen, lambda model, state, took_s: self.states.append(state))
        self.core = remote.build(chosen, resolved, watch)
        self.thread = self.core.thread
        self.engine = EngineClient(self.thread, resolved.traits)

    def ask(self, *, priority=Priority.INTERACTIVE, deadline_s=None, **options):
        return self.engine.stream(Utterance(SPEECH, **options), priority=priority, deadline_s=deadline_s)

    async def until(self, holds):
        await until(lambda: holds(self.thread.snapshot()))

    @property
    def ends(self):
        return [call.args[1] for call in self.seen.ended.call_args_list]


class _Engine:
    """The server of `asr-server engine`, in this process."""

    def __init__(self, place, **settings):
        self.server = EngineServer(*_resolved(place.parent, **settings))
        self._tasks = [asyncio.create_task(self.server.publish()), asyncio.create_task(self._listen(place))]

    async def _listen(self, place):
        loop = asyncio.get_running_loop()
        async with await loop.create_unix_server(lambda: ServerConnection(self.server), str(place)):
            await asyncio.Event().wait()

    async def end(self):
        for task in self._tasks:
            task.cancel()
        for connection in list(self.server.connections):
            connection.transport.abort()
        await asyncio.to_thread(self.server.core.thread.close)

    @property
    def running(self):
        return self.server.core.thread.snapshot().running


def _process():
    """Return the id of the engine process, None while there is none."""
    return engine_of(SimpleNamespace(process=SimpleNamespace(pid=os.getpid())))


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(tmp_path / "script.json"))

    def write(**fields):
        (tmp_path / "new").write_text(json.dumps(fields))
        (tmp_path / "new").replace(tmp_path / "script.json")

    write(**QUICK)
    return write


@pytest.fixture
def place(tmp_path):
    return tmp_path / "engine.sock"


@pytest.fixture
async def connect(tmp_path, place):
    """Makes servers, of the engine at the socket unless their settings say otherwise."""
    servers = []

    def connect(**settings):
        servers.append(_Server(tmp_path, **{"engine_process": f"unix:{place}", **settings}))
        return servers[-1]

    yield connect
    for one in servers:
        await asyncio.to_thread(one.thread.close)
    assert _process() is None


@pytest.fixture
async def engine(place):
    engines = []

    def start(**settings):
        engines.append(_Engine(place, **settings))
        return engines[-1]

    yield start
    for one in engines:
        await one.end()


async def test_answers_alignments_and_times_are_those_of_the_engine(connect, engine, script):
    """The clock of both is the same, so that the times of a job add up. An error has its code."""
    script(**QUICK, rules=[{"context": "fail", "fault": "memory"}])
    engine()
    server = connect()
    stream, failing = server.ask(stream=True), server.ask(context="fail")
    assert "".join([piece async for piece in stream]) == WORDS
    answer = await stream.result()
    assert (answer.hypothesis.text, answer.end) == (WORDS, 32_000)
    assert min(answer.queue_s, answer.infer_s, answer.load_s) >= 0
    with raises("engine_out_of_memory"):
        await failing.result()
    span = AlignItem(SPEECH, "two words", "English")
    placed = await server.engine.align(span, priority=Priority.INTERACTIVE)
    assert [piece.text for piece in placed.pieces] == ["two", "words"]
    await server.until(lambda _: server.seen.stepped.called)
    assert server.states == [ModelState.LOADING, ModelState.LOADED]
    assert server.thread.with_recordings_s() > 0
    assert server.core.infos()[DEFAULT].slots == 8


async def test_deadlines_wait_for_an_engine_that_comes_and_a_model_that_loads(connect, engine, script):
    """A request is answered although loading the model takes longer than the request may."""
    script(**QUICK, load_s=0.8)
    server = connect()
    stream = server.ask(stream=True, deadline_s=server.engine.clock.now_s() + 0.5)
    await asyncio.sleep(0.6)
    engine()
    assert "".join([piece async for piece in stream]) == WORDS  # by the clock of the server
    assert (await stream.result()).hypothesis.text == WORDS  # by that of the engine


async def test_who_leaves_or_is_late_leaves_the_engine(connect, engine, script):
    """The batch is free again, and each end is observed once. A deadline may pass while the row is worked on."""
    script(**SLOW)
    engine()
    server = connect()
    leaving = server.ask()
    await server.until(lambda snapshot: snapshot.running == 1)
    leaving.cancel()
    await server.until(lambda snapshot: snapshot.running == 0)
    deadline_s = server.engine.clock.now_s() + 0.2
    with pytest.raises(DeadlineExceeded):
        await server.engine.transcribe(Utterance(SPEECH), priority=Priority.INTERACTIVE, deadline_s=deadline_s)
    await server.until(lambda snapshot: snapshot.running == 0)
    assert server.ends == [JobEnd.CANCELLED, JobEnd.EXPIRED]


async def test_rows_go_on_in_the_next_engine(connect, engine, script):
    """A row resumes after the words that were sent, and waiting rows begin unchanged: no word is lost or doubled."""
    script(**SLOW)
    first, server = engine(), connect()
    streams = [server.ask(stream=True) for _ in range(10)]  # two more than the batch has room for
    told = [[] for _ in streams]

    async def read(number):
        async for piece in streams[number]:
            told[number].append(piece)

    readers = [asyncio.create_task(read(number)) for number in range(10)]
    await server.until(lambda _: len(told[0]) >= 3)
    await first.end()
    engine()
    await asyncio.gather(*readers)
    answers = [await stream.result() for stream in streams]
    assert {answer.hypothesis.text for answer in answers} == {"".join(pieces) for pieces in told} == {WORDS}
    assert (server.ends, server.seen.started.call_count) == ([JobEnd.DONE] * 10, 10)


async def test_models_and_leases_are_in_the_next_engine_too(connect, engine, script):
    """A model that was loaded is loaded again, before anybody asks, and stays while it is leased."""
    first, server = engine(idle_timeout=0.2), connect()
    with server.thread.lease(live=True):
        await asyncio.wrap_future(server.thread.load())
        await first.end()
        await server.until(lambda snapshot: snapshot.state is ModelState.UNLOADED)
        engine(idle_timeout=0.2)
        await server.until(lambda snapshot: snapshot.state is ModelState.LOADED)
        await asyncio.sleep(0.6)
        assert server.thread.snapshot().state is ModelState.LOADED
    await server.until(lambda snapshot: snapshot.state is ModelState.UNLOADED)


async def test_a_row_that_ends_every_engine_fails_and_no_other(connect, engine, script):
    """The row is tried in three of them. Rows that never were in a batch with it are answered."""
    script(**SLOW)
    server = connect(max_batch=1)
    bad, *good = [server.ask() for _ in range(4)]
    for _ in range(3):
        fatal = engine(max_batch=1)
        await server.until(lambda snapshot: snapshot.running == 1)
        await fatal.end()
        await server.until(lambda _: not server.thread.is_running)
    script(**QUICK)
    with pytest.raises(TranscriptionFailed):
        await bad.result()
    engine(max_batch=1)
    assert {(await stream.result()).hypothesis.text for stream in good} == {WORDS}


async def test_rows_wait_for_an_engine_no_longer_than_a_start_may_take(connect, engine, script, monkeypatch):
    """Rows then fail with the reason. A later engine answers new rows, and a server that ends accepts none."""
    monkeypatch.setattr(remote, "START_S", 0.3)
    script(**SLOW)
    server = connect()
    with pytest.raises(EngineFailed, match="asr-server engine"):
        await server.ask().result()
    assert server.thread.snapshot().state is ModelState.FAILED
    engine()
    await server.until(lambda snapshot: snapshot.state is not ModelState.FAILED)
    assert (await server.ask().result()).hypothesis.text == WORDS
    await asyncio.to_thread(server.thread.close)
    with pytest.raises(ShuttingDown):
        server.ask()


async def test_rows_and_leases_of_a_server_end_with_its_connection(connect, engine, script):
    """Rows of another server continue. While it holds a lease, the idle model stays loaded beyond its timeout."""
    script(**SLOW)
    shared, one, other = engine(idle_timeout=0.2), connect(), connect()
    with one.thread.lease(live=True):
        await asyncio.wrap_future(one.thread.load())
        await asyncio.sleep(0.6)
        assert shared.server.core.thread.snapshot().state is ModelState.LOADED
        lost = [one.ask() for _ in range(12)]  # more than the batch has room for
        stays = other.ask()
        await until(lambda: shared.running == 7 and len(shared.server.rows) == 13)
        await asyncio.to_thread(one.thread.close)
        for stream in lost:
            with pytest.raises(ShuttingDown):
                await stream.result()
        await until(lambda: len(shared.server.rows) == 1 and shared.running <= 1)
        assert (await stays.result()).hypothesis.text == WORDS
        await until(lambda: shared.server.core.thread.snapshot().state is ModelState.UNLOADED)


async def test_neither_live_work_nor_a_server_that_comes_last_waits_for_the_many_rows_of_another(
    connect, engine, script
):
    """The final of a second server is the next to begin; its six rows begin long before the sixty that came first."""
    script(words_per_s=30, step_s=0.005)
    shared, one, other = engine(), connect(), connect()
    many = [one.ask(stream=True) for _ in range(60)]

    def begun():
        return sum(stream.begun.is_set() for stream in many)

    await until(lambda: begun() == shared.running == 7)  # one place in eight is kept for live work
    await other.ask(priority=Priority.FINAL, stream=True).begun.wait()
    assert begun() == 7
    for stream in [other.ask(stream=True) for _ in range(6)]:
        await stream.begun.wait()
    assert begun() < 30


async def test_steps_and_loads_are_reported_to_one_server(connect, engine, script):
    """So that the sum of what servers count is what the engine did."""
    shared, one, other = engine(), connect(), connect()
    await until(lambda: len(shared.server.connections) == 2)
    await other.ask().result()
    await until(lambda: one.seen.stepped.called or other.seen.stepped.called)
    told, silent = (one, other) if one.seen.stepped.called else (other, one)
    assert told.states == [ModelState.LOADING, ModelState.LOADED]
    assert (silent.seen.stepped.called, silent.states) == (False, [])


async def test_a_server_of_another_model_or_version_is_refused(connect, engine, script, monkeypatch):
    """Requests get the reason, and so does `/readyz`; `/livez` does not, as another start would not help."""
    shared = engine(max_batch=3)
    monkeypatch.setattr(wire, "__version__", "0")
    server = connect()
    with pytest.raises(EngineFailed, match="another MAX_BATCH, VERSION than this server"):
        await server.ask().result()
    snapshot = server.thread.snapshot()
    assert (snapshot.state, snapshot.failure) == (ModelState.FAILED, "")
    assert "another MAX_BATCH, VERSION" in snapshot.load_error
    assert (shared.server.connections, shared.server.rows) == ([], {})


async def test_a_process_of_another_user_is_refused(engine, script, place, monkeypatch):
    """Such a process gets nothing, and what it sends is not read."""
    monkeypatch.setattr("os.getuid", lambda: 4711)
    shared, told, gone = engine(), [], asyncio.Event()
    frames = wire.Frames(lambda message, samples: told.append(message), gone.set)
    await until(place.exists)
    await asyncio.get_running_loop().create_unix_connection(lambda: frames, str(place))
    frames.send(wire.Hello(shared.server.settings))
    async with asyncio.timeout(20):
        await gone.wait()
    assert (told, shared.server.connections) == ([], [])


@pytest.mark.slow("starts engine processes")
async def test_in_gateway_mode_the_process_comes_with_a_row_and_goes_when_idle(connect, script):
    """A row or a lease keeps the process. The next row starts another process, which loads the model again."""
    script(**SLOW)
    server = connect(engine_process="auto", gateway_mode=True, idle_timeout=0.3)
    assert (_process(), server.thread.is_running) == (None, False)
    assert (await server.ask().result()).hypothesis.text == WORDS
    pid = _process()
    with server.thread.lease(live=True):
        await asyncio.sleep(1.0)
        assert (_process(), server.thread.ends[ProcessEnd.STOPPED]) == (pid, 0)
    await server.until(lambda snapshot: _process() is None and snapshot.state is ModelState.UNLOADED)
    await asyncio.sleep(0.3)
    assert (_process(), server.thread.is_running) == (None, False)
    assert (await server.ask().result()).hypothesis.text == WORDS
    assert server.states[:3] == [ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADED]
    assert not server.thread.snapshot().failure


@pytest.mark.nightly
async def test_rows_that_come_while_the_idle_process_ends_are_answered(connect, script):
    """At every moment of its end; each by a process that takes it."""
    server = connect(engine_process="auto", gateway_mode=True, idle_timeout=0.1)
    for number in range(20):
        await asyncio.sleep(0.1 + 0.01 * number)
        assert (await server.ask(stream=True).result()).hypothesis.text == WORDS


_HANG = {"fault": "hang", "hang_s": 1_000, "after_tokens": 3}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fields", "settings", "replaced"),
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
    connect, script, tmp_path, fields, settings, replaced
):
    for rule in fields.get("rules", ()):
        rule["once_file"] = str(tmp_path / "once")
    script(**{**QUICK, **fields})
    server = connect(engine_process=True, engine_hang_s=0.5, **settings)
    stream = server.ask(stream=True)
    await server.until(lambda snapshot: snapshot.loading or snapshot.running)
    pid = _process()
    if "rules" not in fields:
        await asyncio.sleep(1.0)  # it has read its script
        script(**QUICK)
    assert (await stream.result()).hypothesis.text == WORDS
    assert (_process() != pid) is replaced


@pytest.mark.slow("starts engine processes")
async def test_a_shared_engine_loads_at_its_start_unloads_when_idle_and_ends_when_it_hangs(
    connect, script, tmp_path, place
):
    """The engine has its own settings. Its successor gets the rows, and each word is there once."""
    script(**SLOW, rules=[{**_HANG, "once_file": str(tmp_path / "once")}])
    server = connect()
    own = {"MODEL_ID": "fake", "PRELOAD": "true", "IDLE_TIMEOUT": "0.5", "ENGINE_HANG_S": "2"}

    async def run():
        command = sys.executable, "-m", "asr_server", "engine", "--listen", str(place)
        return await asyncio.create_subprocess_exec(*command, env={**os.environ, **own}, cwd=tmp_path)

    shared = await run()
    for state in (ModelState.LOADED, ModelState.UNLOADED):
        await server.until(lambda snapshot, state=state: snapshot.state is state)
    stream = server.ask(stream=True)
    async with asyncio.timeout(60):
        assert await shared.wait() == 70
    following = await run()
    try:
        assert "".join([piece async for piece in stream]) == (await stream.result()).hypothesis.text == WORDS
    finally:
        following.kill()
        await following.wait()
