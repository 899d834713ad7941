"""The end of live sessions: clients that leave, come back, or end them."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from asr_server.core.conftest import counts, until
from asr_server.engine.client import EngineClient
from asr_server.live import inference, sessions
from asr_server.live.conftest import Scripted, opened, processed, until_flush, until_shutdown
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import (
    Audio,
    Checkpoint,
    Configure,
    Final,
    Flush,
    GetCheckpoint,
    Partial,
    UtteranceEnded,
)
from asr_server.live.machine.table import State
from asr_server.live.outbox import SessionPart
from asr_server.live.session_stats import LiveMetrics, SessionOutcome
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority


@pytest.mark.parametrize(("clean", "outcome"), [(True, SessionOutcome.CLOSED), (False, SessionOutcome.LOST)])
async def test_how_a_client_left_is_how_its_session_ended(make, clean, outcome):
    live = make(Scripted(), metrics=LiveMetrics(registry := CollectorRegistry()))
    connection = await opened(live)
    await processed(connection, bytes(64_000))
    live.disconnect(connection, clean=clean, resumable=False)
    assert counts(registry, "asr_live_sessions_ended_total") == {(outcome,): 1}
    assert counts(registry, "asr_live_audio_seconds_total") == {(): 2.0}


async def test_what_comes_behind_the_end_of_a_drain_is_left_to_the_next_session(make, speech, monkeypatch):
    """The session answers none of it, so that the client sends it again. Here the last final comes too late."""
    monkeypatch.setattr(sessions, "_DRAIN_TIMEOUT_S", 1)
    live = make(Scripted(lambda item: None))
    connection = await opened(live)
    await connection.send(Audio(speech[:64_000]))
    draining = asyncio.create_task(live.drain())
    await until(lambda: connection.session.machine.state is State.CLOSED)
    await connection.send(Audio(speech))
    await connection.send(GetCheckpoint())
    kinds = [type(message) for message in await until_shutdown(connection)]
    live.disconnect(connection, clean=False)
    await draining
    assert UtteranceEnded in kinds
    assert Checkpoint not in kinds


async def test_a_drained_session_has_the_times_of_its_last_words(make, speech, monkeypatch):

    async def late(*_, **__):
        await asyncio.sleep(0.2)
        return []

    monkeypatch.setattr(inference, "time_words", late)
    live = make(Scripted())
    connection = await opened(live, words=WordTimes.ESTIMATED)
    await connection.send(Audio(speech))
    draining = asyncio.create_task(live.drain())
    kinds = [type(message) for message in await until_shutdown(connection)]
    live.disconnect(connection, clean=False)
    await draining
    assert kinds[-2:] == [Final, WordTimestamps]


async def test_nothing_goes_on_for_a_session_that_is_over(make, speech, monkeypatch):
    """No task of its requests, estimates, word times and parts is left, no row of the engine, and none of its audio."""
    monkeypatch.setattr(inference, "time_words", lambda *_, **__: asyncio.Event().wait())
    before = asyncio.all_tasks()
    is_asked, may_answer, is_hung = threading.Event(), threading.Event(), threading.Event()

    def estimated(audio):
        if audio.any():  # the first call, of silence, only loads the model
            is_asked.set()
            may_answer.wait(60.0)
        return 0.0

    def working(session_id, send):
        part = SessionPart()
        part.close = asyncio.create_task(asyncio.Event().wait()).cancel
        return part

    batch = Scripted(lambda item: None if is_hung.is_set() else "words")
    live = make(batch, end_of_turn=SimpleNamespace(probability=estimated))
    connection = await opened(live, words=WordTimes.ESTIMATED, parts=(working,))
    await connection.send(Audio(speech[:64_000]))
    await connection.send(Flush())
    await until_flush(connection)
    is_hung.set()
    await connection.send(Audio(speech))
    try:
        await until(lambda: is_asked.is_set() and batch.rows)
        await connection.send(Audio(speech))
        live.disconnect(connection, clean=False, resumable=False)
        await until(lambda: asyncio.all_tasks() == before and not batch.rows)
    finally:
        may_answer.set()
    assert (len(connection.session.inbox), live.shared.memory.held_bytes) == (0, 0)


async def test_the_messages_of_a_connection_end_when_its_client_is_gone(make):
    """Whoever sends them would otherwise wait for ever, also while the session is kept."""
    live = make(Scripted())
    connection = await opened(live)
    live.disconnect(connection, clean=False)
    async with asyncio.timeout(10):
        assert [message async for message in connection.messages()] == []
    assert len(live) == 1


async def test_a_client_that_comes_back_sees_the_open_utterance_as_it_stands(make, speech):
    """Before anything new is said."""
    live = make(Scripted())
    connection = await opened(live)
    machine = connection.session.machine
    await processed(connection, speech[:64_000])
    await until(lambda: machine.current_partial and not machine.busy)
    shown = machine.current_partial
    live.disconnect(connection, clean=False)
    await until(lambda: not machine.busy)
    again = await live.resume(connection.session.id, 0)
    first = (await anext(again.messages())).message
    assert isinstance(first, Partial)
    assert (first.utterance, first.text) == (shown.utterance, shown.text)


async def test_a_configuration_counts_from_when_it_was_sent(make, answers):
    """For the next change and for a client that comes back, also while it waits behind audio."""
    live = make(Scripted())
    connection = await opened(live)
    await connection.send(Audio(bytes(3_200)))
    await connection.send(Configure(live.turn_config(manual=True, context="lamp")))
    rules = connection.session.rules
    assert (rules.manual, rules.context, connection.session.received_actions) == (True, "lamp", 1)


async def test_audio_without_a_final_counts_in_what_all_sessions_hold(make, speech):
    """The engine has it, and the session keeps it until it is answered."""
    live = make(Scripted(lambda item: None))
    connection = await opened(live)
    await processed(connection, speech)
    await connection.send(Flush())
    machine, memory = connection.session.machine, live.shared.memory
    await until(lambda: machine.backlog_samples and memory.held_bytes >= 4 * machine.backlog_samples)
    live.disconnect(connection, clean=True, resumable=False)
    assert memory.held_bytes == 0


async def test_of_a_connection_that_ends_twice_the_first_end_counts(make):
    """The session waits once, from then on."""
    live = make(Scripted(), metrics=LiveMetrics(registry := CollectorRegistry()))
    connection = await opened(live)
    live.disconnect(connection, clean=True)
    live.disconnect(connection, clean=False, resumable=False)
    assert (len(live), live.waiting, counts(registry, "asr_live_sessions_ended_total")) == (1, 1, {})
    await live.resume(connection.session.id, 0)
    assert live.waiting == 0


async def test_the_final_of_a_speaker_goes_before_all_partials(make, speech, monkeypatch):
    asked, transcribe = set(), EngineClient.transcribe

    async def noted(client, utterance, *, priority, **more):
        asked.add((utterance.last, priority))
        return await transcribe(client, utterance, priority=priority, **more)

    monkeypatch.setattr(EngineClient, "transcribe", noted)
    connection = await opened(make(Scripted()))
    await connection.send(Audio(speech))
    await connection.send(Flush())
    await until_flush(connection)
    assert asked == {(False, Priority.PARTIAL), (True, Priority.FINAL)}
