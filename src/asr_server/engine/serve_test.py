"""The engine process's end of its socket, over real sockets, with the fake engine on a thread of its own."""

import asyncio
import socket

import numpy as np
import pytest

from asr_server import feature_list
from asr_server.core.settings import Settings
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.protocol import Utterance
from asr_server.engine.serve import EngineServer, ServerConnection
from asr_server.engine.wire import (
    EngineState,
    Frames,
    Hello,
    Lease,
    RowFinished,
    RowStarted,
    ServerRefused,
    SubmitRow,
)
from asr_server.schedule.job import Priority
from asr_server.schedule.model import ModelState

IDLE_S = 0.2
SPEECH = np.full(2 * 16_000, 0.5, np.float32)  # "one two three four"


class _Peer:
    """A server, as the engine process sees it."""

    def __init__(self):
        self.told, self.changed, self.gone = [], asyncio.Event(), asyncio.Event()
        self.frames = Frames(self._take, self.gone.set)

    def _take(self, message, _):
        self.told.append(message)
        self.changed.set()

    def of(self, kind):
        return [message for message in self.told if isinstance(message, kind)]

    async def until(self, holds):
        async with asyncio.timeout(20):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    def ask(self, number, *, priority=Priority.INTERACTIVE, model="", **options):
        item = Utterance(SPEECH, **options)
        self.frames.send(SubmitRow(number, priority, 2.0, model, "", 0.0, item), SPEECH)

    def ended(self, number):
        return next((message for message in self.of(RowFinished) if message.number == number), None)


@pytest.fixture
async def engine(tmp_path, monkeypatch):
    """Return a function that starts the engine with a script, and one that connects a server to it."""
    script = tmp_path / "script.json"
    script.write_text('{"words_per_s": 2, "step_s": 0.02}')
    monkeypatch.setenv("FAKE_ENGINE_SCRIPT", str(script))
    settings = Settings(_env_file=None, model_id="fake", state_dir=tmp_path, idle_timeout=IDLE_S)
    resolved = feature_list.resolve(settings, Capabilities(gpu=False, torch_cuda=False))
    server = EngineServer(settings, resolved)
    publishing = asyncio.create_task(server.publish())

    peers = []

    async def connect(**unlike):
        ours, theirs = socket.socketpair()
        loop, peer = asyncio.get_running_loop(), _Peer()
        peers.append(peer)
        await loop.connect_accepted_socket(lambda: ServerConnection(server), theirs)
        await loop.create_unix_connection(lambda: peer.frames, sock=ours)
        peer.frames.send(Hello({**server.settings, **unlike}))
        return peer

    yield server, connect, script
    publishing.cancel()
    for peer in peers:
        peer.frames.transport.abort()
    await _until(lambda: not server.rows and all(peer.gone.is_set() for peer in peers))
    await asyncio.to_thread(server.core.thread.close)


async def _until(holds):
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


async def test_rows_of_a_server_end_with_its_connection(engine):
    """Rows of another server go on."""
    server, connect, script = engine
    script.write_text('{"words_per_s": 100, "step_s": 0.02}')
    one, other = await connect(), await connect()
    for number in range(12):  # more than the batch has room for
        one.ask(number)
    other.ask(1)
    thread = server.core.thread
    await _until(lambda: thread.snapshot().running == 7 and len(server.rows) == 13)
    jobs = list(server.connections[0].rows.values())
    one.frames.transport.abort()
    await _until(lambda: all(job.cancelled for job in jobs))
    await _until(lambda: thread.snapshot().running <= 1 and not sum(thread.snapshot().depth.values()))
    await other.until(lambda: other.ended(1))
    assert other.ended(1).hypothesis.text
    assert not server.rows


async def test_a_lease_keeps_the_model_loaded_until_its_connection_ends(engine):
    """The model is idle for longer than the timeout while the connection holds the lease."""
    server, connect, _ = engine
    peer = await connect()
    peer.frames.send(Lease("", live=True, held=True))
    peer.ask(1)
    await peer.until(lambda: peer.ended(1))
    await asyncio.sleep(3 * IDLE_S)
    assert server.core.thread.snapshot().state is ModelState.LOADED
    peer.frames.transport.abort()
    await _until(lambda: server.core.thread.snapshot().state is ModelState.UNLOADED)


async def test_live_rows_of_any_server_go_before_recordings_of_all(engine):
    """There is one heap: a final that comes last over a second connection is the next to begin."""
    _, connect, script = engine
    script.write_text('{"words_per_s": 30, "step_s": 0.02}')
    one, other = await connect(), await connect()
    for number in range(24):
        one.ask(number)
    await one.until(lambda: len(one.of(RowStarted)) == 7)  # one place in eight is kept for live work
    other.ask(1, priority=Priority.FINAL)
    await other.until(lambda: other.of(RowStarted))
    assert len(one.of(RowStarted)) == 7


async def test_the_error_of_a_row_arrives_with_its_code(engine):
    """The others are unharmed."""
    _, connect, script = engine
    script.write_text('{"rules": [{"context": "fail", "fault": "memory"}]}')
    peer = await connect()
    peer.ask(1, context="fail")
    peer.ask(2)
    await peer.until(lambda: peer.ended(1) and peer.ended(2))
    assert peer.ended(1).error.code == "engine_out_of_memory"
    assert peer.ended(2).error is None


async def test_steps_and_loads_are_reported_to_one_server(engine):
    """So that the sum of what servers count is what the engine did."""
    _, connect, _ = engine
    one, other = await connect(), await connect()
    other.ask(1)
    await one.until(lambda: any(state.steps for state in one.of(EngineState)))
    assert [change[1] for state in one.of(EngineState) for change in state.changes] == ["loading", "loaded"]
    assert not any(state.steps or state.changes for state in other.of(EngineState))


@pytest.mark.parametrize("what", ["no such model", "the same number", "a message of the other side"])
async def test_a_server_that_sends_what_none_sends_loses_its_connection(engine, what):
    """The engine goes on."""
    server, connect, script = engine
    script.write_text('{"words_per_s": 100, "step_s": 0.02}')
    peer, other = await connect(), await connect()
    peer.ask(1)
    if what == "no such model":
        peer.ask(2, model="another")
    elif what == "the same number":
        peer.ask(1)
    else:
        peer.frames.send(RowStarted(1))
    async with asyncio.timeout(20):
        await peer.gone.wait()
    await _until(lambda: not server.rows)
    other.ask(1)
    await other.until(lambda: other.of(RowStarted))


async def test_a_server_with_another_model_or_version_is_refused_by_their_names(engine):
    """The refused server gets nothing else, and its rows are not read."""
    server, connect, _ = engine
    peer = await connect(MODEL_ID='"other"', VERSION='"0"', USE_LATER_SETTING="1")
    peer.ask(1)
    async with asyncio.timeout(20):
        await peer.gone.wait()
    assert [type(message) for message in peer.told] == [ServerRefused]
    assert "another MODEL_ID, USE_LATER_SETTING, VERSION than this server" in peer.told[0].reason
    assert server.rows == {}


async def test_a_server_that_comes_last_does_not_wait_for_the_many_rows_of_another(engine):
    """Both get as many slots from then on: its six rows begin long before the sixty that came first."""
    _, connect, script = engine
    script.write_text('{"words_per_s": 30, "step_s": 0.005}')
    one, other = await connect(), await connect()
    for number in range(60):
        one.ask(number)
    await one.until(lambda: len(one.of(RowStarted)) == 7)
    for number in range(6):
        other.ask(number)
    await other.until(lambda: len(other.of(RowStarted)) == 6)
    assert len(one.of(RowStarted)) < 30


async def test_a_process_of_another_user_is_refused(engine, monkeypatch):
    """Such a process gets nothing, and what it sends is not read."""
    server, connect, _ = engine
    monkeypatch.setattr("os.getuid", lambda: 4711)
    peer = await connect()
    peer.ask(1)
    async with asyncio.timeout(20):
        await peer.gone.wait()
    assert (peer.told, server.rows) == ([], {})
