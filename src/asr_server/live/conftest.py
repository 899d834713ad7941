"""Live sessions over an engine thread whose batch answers by a script."""

import asyncio
import time
import wave
from contextlib import suppress

import pytest

from asr_server import demo
from asr_server.core import settings
from asr_server.core.conftest import until
from asr_server.core.errors import InvalidInput, ShuttingDown
from asr_server.engine.client import EngineClient
from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.live.inference import Engines
from asr_server.live.machine.events import Audio, Ending, Final, Flush
from asr_server.live.session import LiveSessionOptions
from asr_server.live.session_stats import LiveMetrics
from asr_server.live.sessions import LiveSessions
from asr_server.live.speech_detection import VoiceDetector
from asr_server.schedule.admission import Admission
from asr_server.schedule.model import RowDone, RowFailed
from asr_server.schedule.thread import EngineThread


class Scripted:
    """A batch that answers by `script(item)`: a text, an error, or None for never."""

    free_slots = urgent_slots = 8

    def __init__(self, script=lambda item: "words"):
        self.script, self.rows, self.seen, self.loaded = script, {}, [], False

    def load(self):
        self.loaded = True

    def unload(self):
        self.loaded = False

    def admit(self, key, item, urgent=False):
        self.rows[key] = item
        self.seen.append(item)

    def step(self, begin_s=None):
        time.sleep(0.001)
        for key, item in list(self.rows.items()):
            said = self.script(item)
            if said is None:
                continue
            del self.rows[key]
            if isinstance(said, Exception):
                yield RowFailed(key, said)
            else:
                yield RowDone(key, Hypothesis(said, "English", (1,), (-0.1,), Finish.END, 1, 1, 1))

    def drop(self, key):
        self.rows.pop(key, None)


@pytest.fixture(scope="session")
def speech():
    """The bundled recording and a pause: bytes."""
    with wave.open(str(demo.sample().recording)) as recording:
        return recording.readframes(recording.getnframes()) + bytes(28_800)


@pytest.fixture
async def make():
    """Makes the sessions of a server over batches that answer by a script."""
    threads, servers = [], []

    def build(batch, accurate=None, metrics=None, admission=None, end_of_turn=None, **changes):
        own = [EngineThread(b, idle_timeout_s=0) for b in (batch, accurate) if b is not None]
        threads.extend(own)
        clients = [EngineClient(thread) for thread in own]
        values = settings.load(_env_file=None, model_id="demo", **changes)
        engines = Engines(clients[0], clients[-1], metrics or LiveMetrics())
        servers.append(LiveSessions(values, engines, admission or Admission(1000.0), end_of_turn))
        return servers[-1]

    yield build
    for live in servers:
        for identity in live.ids:
            with suppress(InvalidInput):  # it has ended
                live.owned(identity, "").end()
    for thread in threads:
        thread.close()


@pytest.fixture
def answers(monkeypatch):
    """Until this is set the voice detector does not answer, so that sessions take in audio and process none."""
    answers = asyncio.Event()

    async def frames(*_):
        await answers.wait()
        return []

    monkeypatch.setattr(VoiceDetector, "frames", frames)
    return answers


async def processed(connection, audio):
    """Send audio, and wait until the session has processed it."""
    machine = connection.session.machine
    received = machine.account.received + len(audio) // 2
    await connection.send(Audio(audio))
    await until(lambda: machine.account.received == received)


async def opened(live, **options):
    return await live.open(LiveSessionOptions(live.turn_config(), **options))


async def said(connection, audio):
    """Say this, and return the messages up to the final that answers a flush."""
    for at in range(0, len(audio), 3_000):
        await connection.send(Audio(audio[at : at + 3_000]))
        await asyncio.sleep(0.003)
    await connection.send(Flush())
    return await until_flush(connection)


async def until_flush(connection):
    """The messages up to the final that answers a flush."""
    messages = []
    async for outgoing in connection.messages():
        messages.append(outgoing.message)
        if isinstance(outgoing.message, Final) and outgoing.message.ending is Ending.FLUSH:
            return messages
    return messages


async def until_shutdown(connection):
    """The messages up to the end of the server."""
    messages = []
    try:
        async for outgoing in connection.messages():
            messages.append(outgoing.message)  # noqa: PERF401 - what came before the error counts
    except ShuttingDown:
        return messages
    raise AssertionError("the session did not end with the server")
