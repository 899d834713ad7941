"""The app's engine on real engine replicas, with the scripted engine, over their connections and without Ray."""

import asyncio
import json
import threading
import time
from contextlib import aclosing

import numpy as np
import pytest

from asr_server.core import settings
from asr_server.core.errors import ModelUnavailable, TranscriptionFailed
from asr_server.engine.client import EngineClient
from asr_server.engine.fake_script import FakeScript, Fault, Rule
from asr_server.engine.protocol import AlignItem, EngineInfo, Utterance
from asr_server.schedule.job import Priority
from asr_server.schedule.ports import JobEnd
from asr_server.schedule.thread import EngineThread
from asr_server_ray.engine import ClusterEngine, Fleet
from asr_server_ray.messages import ReplicaStats, RowCall
from asr_server_ray.replica import EngineReplica
from asr_server_ray.replica_connections import ReplicaConnections
from asr_server_ray.routing import Routing
from asr_server_ray.rows import Sender

SPEECH = np.full(16_000 * 8, 0.3, np.float32)
_PATIENCE_S = 20.0


class _Noting(EngineReplica):
    """Notes its rows in `calls` with its name."""

    def __init__(self, name, calls, chosen):
        self._name, self._calls = name, calls
        super().__init__(chosen)

    async def answers(self, call):
        self._calls.append((self._name, call))
        async with aclosing(super().answers(call)) as answers:
            async for answer in answers:
                yield answer


class ListeningReplicas:
    """Two replicas that listen, and what an app knows of them. Each can be lost."""

    def __init__(self, chosen):
        self.calls, self.routing = [], Routing()
        self.by_name = {name: _Noting(name, self.calls, chosen) for name in "ab"}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        for replica in self.by_name.values():
            self.run(replica.listen("127.0.0.1"))
        self.publish()

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def publish(self):
        self.routing.update({name: replica.record_routing_stats()["stats"] for name, replica in self.by_name.items()})

    def lose(self, name):
        self.run(self.by_name[name].drain(0))

    def close(self):
        for replica in self.by_name.values():
            self.run(replica.drain(0))
            replica._core.thread.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()


@pytest.fixture
def replicas(tmp_path):
    """Their engines take 10 ms for a word."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"step_s": 0.01}))
    made = ListeningReplicas(settings.load(_env_file=None, model_id="fake", fake_engine_script=script, max_batch=2))
    yield made
    made.close()


@pytest.fixture
def engine(replicas):
    """The engine that sends rows to them."""
    described = asyncio.run(replicas.by_name["a"].describe())
    fleet = Fleet(ReplicaConnections(replicas.routing), lambda: replicas.routing.stats, described)
    return ClusterEngine(fleet, Sender("app", ""))


@pytest.fixture
def client(engine):
    """A client of a thread that drives it."""
    thread = EngineThread(engine, idle_timeout_s=0)
    yield EngineClient(thread)
    thread.close()


def _alone(utterance):
    """What one replica answers."""

    async def ask():
        chosen = settings.load(_env_file=None, model_id="fake")
        call = RowCall(1, utterance, "", False, "", 0.0)
        return [answer async for answer in EngineReplica(chosen).answers(call)][-1]

    return asyncio.run(ask())


async def _stream(client, utterance, on_text=lambda text: None):
    stream, texts = client.stream(utterance, priority=Priority.INTERACTIVE), []
    async for text in stream:
        texts.append(text)
        on_text(text)
    return texts, (await stream.result()).hypothesis


def test_an_answer_is_that_of_one_engine(client, replicas):
    """Its text comes in pieces where it is asked for, and spans of a recording are with both replicas."""
    expected = _alone(Utterance(SPEECH))

    async def ask():
        return await asyncio.gather(*(_stream(client, Utterance(SPEECH, stream=True)) for _ in range(4)))

    for texts, hypothesis in asyncio.run(ask()):
        assert hypothesis == expected
        assert "".join(texts) == expected.text
        assert len(texts) > 3
    assert {name for name, _ in replicas.calls} == {"a", "b"}


@pytest.mark.parametrize("words", [1, 5])
def test_a_row_goes_on_when_its_replica_ends(client, replicas, words):
    """No word is lost or said twice."""
    expected, heard = _alone(Utterance(SPEECH)), []

    def on_text(text):
        heard.append(text)
        if len(heard) == words:
            replicas.lose(replicas.calls[0][0])

    texts, hypothesis = asyncio.run(_stream(client, Utterance(SPEECH, stream=True), on_text))
    assert "".join(texts) == hypothesis.text == expected.text
    first, second = replicas.calls
    assert first[0] != second[0]
    assert second[1].item.prefix


def test_a_session_stays_with_one_replica(client, replicas):
    """Partials and finals of all its utterances."""

    async def ask():
        for number in range(4):
            for last in (False, True):
                row = Utterance(SPEECH[:16_000], session=f"s:{number}", last=last)
                await client.transcribe(row, priority=Priority.PARTIAL)
                replicas.publish()

    asyncio.run(ask())
    assert len(replicas.calls) == 8
    assert len({name for name, _ in replicas.calls}) == 1
    assert sorted(stats.sessions.get("app", 0) for stats in replicas.routing.stats.values()) == [0, 1]


def test_words_are_placed_by_a_replica(client):
    """As by the aligner of one server."""
    item = AlignItem(SPEECH, "one two three", "English")
    alignment = asyncio.run(client.align(item, priority=Priority.INTERACTIVE))
    assert [piece.text for piece in alignment.pieces] == ["one", "two", "three"]


def test_who_leaves_frees_the_place_at_the_replica(client, replicas, monkeypatch):
    """The row is dropped there too, and does not run to its end."""
    ends = []
    for replica in replicas.by_name.values():
        monkeypatch.setattr(replica._answered, "ended", lambda job, end, value=None: ends.append(end))

    async def ask():
        stream = client.stream(Utterance(SPEECH, stream=True), priority=Priority.INTERACTIVE)
        await anext(stream)
        stream.cancel()

    asyncio.run(ask())
    give_up_s = time.monotonic() + _PATIENCE_S
    while not ends:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    assert ends == [JobEnd.CANCELLED]


def test_an_error_of_a_row_reaches_its_caller(engine, client, replicas):
    """And is not tried elsewhere."""
    for replica in replicas.by_name.values():
        replica._core.engines[""]._engine.scripts.replace(FakeScript(rules=(Rule(fault=Fault.RAISE),)))
    with pytest.raises(TranscriptionFailed):
        asyncio.run(client.transcribe(Utterance(SPEECH), priority=Priority.INTERACTIVE))
    assert len(replicas.calls) == 1


def test_slots_are_those_of_all_replicas(engine, replicas):
    """And change with their number; one row may wait while none runs."""
    assert (engine.free_slots, engine.urgent_slots) == (4, 5)
    replicas.routing.update({"a": replicas.routing.stats["a"]})
    assert engine.free_slots == 2
    replicas.routing.update({"a": ReplicaStats(engines={"": EngineInfo("fake", "fake", "cpu", "", slots=0)})})
    assert engine.free_slots == 1


def test_without_an_aligner_an_alignment_is_refused(engine, replicas):
    """As by one server."""
    info = EngineInfo("fake", "fake", "cpu", "", slots=2)
    replicas.routing.update({"a": ReplicaStats(engines={"": info})})
    engine.load()
    with pytest.raises(ModelUnavailable):
        engine.admit(1, AlignItem(SPEECH, "one", "English"))
    engine.unload()
    assert not engine.loaded


def test_the_health_of_a_replica_is_that_of_its_engine(replicas):
    """Ray Serve starts another in place of one whose thread has ended."""
    replica = replicas.by_name["a"]
    replica.check_health()
    replica._core.thread.close()
    with pytest.raises(RuntimeError):
        replica.check_health()


def test_what_a_replica_publishes_for_scaling_has_the_queue_of_the_app(replicas):
    """What waits there has reached no replica."""
    replica = replicas.by_name["b"]

    async def ask():
        call = RowCall(1, Utterance(SPEECH, session="s:1", last=True), "", True, "app", 120.0)
        return [answer async for answer in replica.answers(call)]

    before = replica.record_autoscaling_stats()
    replicas.run(ask())
    after = replica.record_autoscaling_stats()
    assert (before["waiting_s"], after["waiting_s"]) == (0.0, 120.0)
    assert (before["sessions"], after["sessions"]) == (0.0, 1.0)
    assert after["streams"] == before["streams"] > 0


def test_a_replica_forgets_a_session_when_its_app_says_that_it_has_ended(replicas):
    """Not when another app has it meanwhile."""
    replica = replicas.by_name["a"]

    async def ask():
        for sender in ("app", "other"):
            for stream in ("s", sender):
                call = RowCall(1, Utterance(SPEECH, session=f"{stream}:1", last=True), "", True, sender, 0.0)
                assert [answer async for answer in replica.answers(call)]
        assert replica.record_routing_stats()["stats"].sessions == {"app": 1, "other": 2}
        await replica.end_streams("app", ["s", "app"])

    replicas.run(ask())
    assert replica.record_routing_stats()["stats"].sessions == {"other": 2}
