"""Live sessions over an engine thread with a scripted batch."""

import asyncio
import itertools
import threading

import pytest
from prometheus_client import CollectorRegistry

from asr_server.core import settings
from asr_server.core.audio import FRAME_SAMPLES
from asr_server.core.conftest import counts, raises, until
from asr_server.core.errors import AsrError, Overloaded, ShuttingDown
from asr_server.engine.client import EngineClient
from asr_server.live import sessions as live_sessions
from asr_server.live.conftest import Scripted, opened, processed, said, until_flush, until_shutdown
from asr_server.live.inference import Engines
from asr_server.live.machine.events import Audio, Configure, Ending, Final, Flush, Partial, Reset, TranscribeResult
from asr_server.live.session_stats import LiveMetrics, SessionOutcome
from asr_server.live.sessions import LiveSessions
from asr_server.net.loop_time import ConnectionTime, loop_time, measure
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import Priority
from asr_server.schedule.thread import EngineThread


async def test_partials_ask_the_fast_engine_and_finals_the_accurate_one(make, speech):
    fast, accurate = Scripted(lambda item: "quick words"), Scripted(lambda item: "right words")
    connection = await opened(make(fast, accurate))
    messages = await said(connection, speech)
    assert [m.text for m in messages if isinstance(m, Final)] == ["right words", ""]
    assert {m.text for m in messages if isinstance(m, Partial)} <= {"quick words", "right words"}
    assert len(fast.seen) >= 2
    # In words: each engine has tokens of its own, and those of one mean nothing to the other.
    assert not any(item.draft for item in (*fast.seen, *accurate.seen))
    assert accurate.seen[-1].draft_text.text in {"quick words", "right words"}
    assert {item.draft_text.text for item in fast.seen if item.draft_text} <= {"quick words", "right words"}


MIB = 1024 * 1024


async def test_draining_refuses_new_sessions_and_ends_the_open_ones_with_their_finals(make, speech):
    """Every open utterance gets its final; then the connection ends with `ShuttingDown`."""
    live = make(Scripted(), metrics=LiveMetrics(registry := CollectorRegistry()))
    connection = await opened(live)
    await connection.send(Audio(speech[:64_000]))
    drained = asyncio.create_task(live.drain())
    finals = [m for m in await until_shutdown(connection) if isinstance(m, Final)]
    live.disconnect(connection, clean=False)
    await drained
    assert [(f.text, f.ending) for f in finals] == [("words", Ending.CLOSE)]
    assert counts(registry, "asr_live_sessions_ended_total") == {(SessionOutcome.DRAINED,): 1}
    with pytest.raises(ShuttingDown):
        await opened(live)


async def test_a_reset_begins_another_stream(make, speech, monkeypatch):
    connection, heard = await opened(make(Scripted())), [[]]
    receive = connection.session.machine.receive

    def listen(event, frames=()):
        heard[-1] += [frame.probability for frame in frames]
        if isinstance(event, Reset):
            heard.append([])
        return receive(event, frames)

    monkeypatch.setattr(connection.session.machine, "receive", listen)
    whole = speech[: len(speech) // (2 * FRAME_SAMPLES) * (2 * FRAME_SAMPLES)]
    for event in (Audio(whole), Reset(), Audio(whole), Flush()):
        await connection.send(event)
    await until_flush(connection)
    before, after = heard
    assert max(before) > 0.5
    assert before == after


@pytest.mark.parametrize("event", [Audio, TranscribeResult])
async def test_a_session_that_failed_cannot_be_resumed(make, speech, monkeypatch, event):
    """Its client is told of the fault, also if nobody waits for the failed work, and opens another session."""
    live = make(Scripted(), metrics=LiveMetrics(registry := CollectorRegistry()))
    connection = await opened(live)
    machine, receive = connection.session.machine, connection.session.machine.receive
    monkeypatch.setattr(machine, "receive", lambda got, *a: 1 / 0 if isinstance(got, event) else receive(got, *a))
    await connection.send(Audio(speech))
    with pytest.raises(AsrError, match="server failed"):
        await until_flush(connection)
    with raises("session_not_found"):
        await live.resume(connection.session.id, 0)
    live.disconnect(connection, clean=True, resumable=False)
    assert counts(registry, "asr_live_sessions_ended_total") == {(SessionOutcome.FAILED,): 1}


async def test_audio_that_waits_for_room_is_not_taken_from_a_connection_that_lost_the_session(make, answers):
    """The next connection was told how much had arrived, and sends the rest itself."""
    live = make(Scripted())
    connection = await opened(live)
    session = connection.session
    late = asyncio.create_task(connection.send(Audio(bytes(33 * MIB))))
    await asyncio.sleep(0)
    await live.resume(session.id, 0)
    told = session.received_bytes
    answers.set()
    with raises("session_taken"):
        await late
    assert session.received_bytes == told < 32 * MIB


async def test_a_session_that_opens_while_all_are_drained_is_refused(make, monkeypatch):
    live, loading = make(Scripted()), threading.Event()
    monkeypatch.setattr(live_sessions, "load_voice_detector", loading.wait)
    opening = asyncio.create_task(opened(live))
    await asyncio.sleep(0)
    draining = asyncio.create_task(live.drain())
    await asyncio.sleep(0)
    loading.set()
    with pytest.raises(ShuttingDown):
        await opening
    await draining
    assert len(live) == 0


async def test_an_open_session_keeps_its_engines_loaded_and_gives_them_back():
    """Before the first words, and while it waits for its client; a session that is over keeps nothing."""
    now_s, fast, accurate = [0.0], Scripted(), Scripted()
    threads = [EngineThread(b, idle_timeout_s=10.0, clock=lambda: now_s[0], start=False) for b in (fast, accurate)]

    def loaded_after(seconds):
        now_s[0] += seconds
        for thread in threads:
            thread.turn()
        return fast.loaded, accurate.loaded

    live = LiveSessions(
        settings.load(_env_file=None, model_id="demo"), Engines(*map(EngineClient, threads)), Admission(1000.0)
    )
    connection = await opened(live)
    assert loaded_after(3_600.0) == (True, True)
    live.disconnect(connection, clean=False)
    assert loaded_after(3_600.0) == (True, True)
    await live.drain()
    assert loaded_after(9.0) == (True, True)
    assert loaded_after(2.0) == (False, False)


async def test_all_sessions_together_hold_a_bounded_amount(make, answers):
    """A session over its share waits or its frame is refused, and a session that sends little continues."""
    live = make(Scripted())
    memory, greedy, speaker = live.shared.memory, [await opened(live) for _ in range(8)], await opened(live)
    frames = [asyncio.create_task(connection.send(Audio(bytes(15 * MIB)))) for connection in greedy]
    await asyncio.sleep(0)
    assert memory.held_bytes < 1.1 * 128 * MIB
    await speaker.send(Audio(bytes(200_000)))
    assert speaker.session.received_bytes == 200_000
    for task in frames:
        task.cancel()
    refused = [r for r in await asyncio.gather(*frames, return_exceptions=True) if isinstance(r, Overloaded)]
    received = [connection.session.received_bytes for connection in greedy]
    assert received.count(0) == len(refused) > 0
    assert 64 * MIB < sum(received) < 128 * MIB
    for connection in (*greedy, speaker):
        live.disconnect(connection, clean=False, resumable=False)
    assert memory.held_bytes == 0


async def test_what_waits_in_sessions_is_counted_with_recordings(make, answers):
    """In seconds of audio, until it is answered or the session ends; a full server opens no more sessions."""
    live = make(Scripted(), admission=(admission := Admission(1000.0)))
    first, second = await opened(live), await opened(live)
    for connection in (first, second):
        await connection.send(Audio(bytes(32_000 * 497)))
    assert admission.held_s == pytest.approx(2 * 497)
    with pytest.raises(Overloaded):
        await opened(live)
    live.disconnect(first, clean=False)
    assert admission.held_s == pytest.approx(2 * 497)
    live.disconnect(await live.resume(first.session.id, 0), clean=False, resumable=False)
    assert admission.held_s == pytest.approx(497)
    second.session.end()
    assert admission.held_s == 0


async def test_audio_counts_at_the_rate_at_which_it_was_sent(make, answers):
    """A client may change the rate in the middle. Its lead over real time and what waits are right before and after."""
    live = make(Scripted(), admission=(admission := Admission(1000.0)))
    connection = await opened(live, input_rate_hz=48_000)
    await connection.send(Audio(bytes(6 * 96_000)))
    await connection.send(Configure(live.turn_config(), 8_000))
    await connection.send(Audio(bytes(3 * 16_000)))
    assert (admission.held_s, connection.session.priority) == (pytest.approx(9), Priority.PARTIAL)
    await connection.send(Audio(bytes(3 * 16_000)))
    assert (admission.held_s, connection.session.priority) == (pytest.approx(12), Priority.INTERACTIVE)
    answers.set()
    await until(lambda: admission.held_s == 0)


async def test_an_open_utterance_is_counted_until_its_final(make, speech):
    """A speaker's audio is accepted and has no final yet; a silent session holds nothing."""
    live = make(Scripted(), admission=(admission := Admission(1000.0)))
    connection = await opened(live)
    for audio, is_open in ((bytes(32_000), False), (speech[: len(speech) // 2], True)):
        await processed(connection, audio)
        await until(lambda: (admission.held_s > 0.5) is is_open)  # noqa: B023 - awaited at once
    await connection.session.finish()
    assert admission.held_s == 0


@pytest.mark.parametrize(("reopened", "spoken_s", "sent_s"), [(None, 9, 11), ("pause", 49, 51)])
async def test_who_sends_faster_than_one_speaks_is_not_ahead_of_others(make, reopened, spoken_s, sent_s):
    """A recording over the same connection has no more right than one in a file, and less when its client is gone. A
    speaker whose connection broke keeps going first, and may send an utterance again."""
    live = make(Scripted())
    speaker, sender = await opened(live, reopened=reopened), await opened(live, reopened=reopened)
    await speaker.send(Audio(bytes(spoken_s * 32_000)))
    await sender.send(Audio(bytes(sent_s * 32_000)))
    assert (speaker.session.priority, sender.session.priority) == (Priority.PARTIAL, Priority.INTERACTIVE)
    for connection in (speaker, sender):
        live.disconnect(connection, clean=False)
    assert (speaker.session.priority, sender.session.priority) == (Priority.PARTIAL, Priority.BULK)


@pytest.mark.slow("waits for a caller's share of the event loop")
async def test_what_comes_faster_than_speech_waits_for_its_callers_time(make):
    """The audio waits while others have work, goes on when they have none, and is all there."""
    live, times = make(Scripted()), loop_time()

    async def measured():
        connection_time = ConnectionTime(times)
        connection_time.caller = times.of("busy")
        measure(connection_time)
        connection_time.take(1.0)
        return await opened(live)

    with times.working(times.of("other")):
        sender = await asyncio.create_task(measured())
        machine = sender.session.machine
        await sender.send(Audio(bytes(20 * 32_000)))
        live.disconnect(sender, clean=False)
        await asyncio.sleep(0.3)
        assert machine.clock_samples < 16_000
    await until(lambda: machine.clock_samples >= 19 * 16_000)


async def test_sessions_process_audio_in_turn(make):
    """However many have audio waiting, a round of the event loop has ten slices of it, and others get their turn."""
    live = make(Scripted())
    connections = [await opened(live) for _ in range(30)]
    machines = [connection.session.machine for connection in connections]
    for connection in connections:
        await connection.send(Audio(bytes(5 * 32_000)))
    clocks_s = [0.0]
    while clocks_s[-1] < 6:
        await asyncio.sleep(0)
        clocks_s.append(sum(machine.clock_samples for machine in machines) / 16_000)
    assert max(after - before for before, after in itertools.pairwise(clocks_s)) < 11 * 0.128


async def test_a_session_that_was_resumed_does_not_end_when_its_waiting_time_would_have(make):
    """A session that was cut off later has ended by then, and this one goes on."""
    live = make(Scripted(), ws_resume_s=0.2)
    first, second = await opened(live), await opened(live)
    for connection in (first, second):
        live.disconnect(connection, clean=False)
    again = await live.resume(first.session.id, 0)
    await until(lambda: second.session.id not in live.ids)
    assert first.session.id in live.ids
    await again.send(Flush())
    assert [m.ending for m in await until_flush(again) if isinstance(m, Final)] == [Ending.FLUSH]
