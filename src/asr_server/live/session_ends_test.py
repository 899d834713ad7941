"""Live sessions that clients leave, come back to, move and end: what they then get, and what is left."""

import asyncio
from types import SimpleNamespace

import pytest

from asr_server.core.errors import AsrError, ShuttingDown
from asr_server.live.conftest import Scripted, opened, until_flush
from asr_server.live.machine.events import (
    Audio,
    Configure,
    Detection,
    Ending,
    Final,
    Flush,
    Partial,
    ResultKind,
    TranscribeResult,
    UtteranceEnded,
)
from asr_server.live.options import LiveSessionOptions, PartRequest, SessionPart
from asr_server.live.session_stats import LiveObserver, SessionOutcome
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority
from asr_server.schedule.quota import Quota

_ID = "live_0123abcd." + 22 * "x"


async def _until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another thread works
            await asyncio.sleep(0.005)


class _Outcomes(LiveObserver):
    def __init__(self):
        self.seen = []

    def ended(self, outcome, audio_s):
        self.seen.append((outcome, audio_s))


class _Working(SessionPart):
    """A part with a task of its own."""

    def __init__(self):
        self._task = asyncio.create_task(asyncio.Event().wait())

    def close(self):
        self._task.cancel()


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ({"clean": True}, SessionOutcome.CLOSED),
        ({"clean": False}, SessionOutcome.LOST),
        ({"clean": False, "moved": True}, SessionOutcome.MOVED),
    ],
)
async def test_how_a_client_left_is_how_its_session_ended(make, how, outcome):
    """Once, with the audio that it had sent."""
    observer = _Outcomes()
    live = make(Scripted(), observer=observer)
    connection = await opened(live)
    await connection.send(Audio(bytes(64_000)))
    await _until(lambda: not connection.session._inbox)
    live.disconnect(connection, resumable=False, **how)
    assert observer.seen == [(outcome, 2.0)]


async def test_a_session_that_was_drained_or_failed_has_ended_so(make, speech, monkeypatch):
    """However its client leaves behind that."""
    observer = _Outcomes()
    live = make(Scripted(), observer=observer)
    failed, drained = await opened(live), await opened(live)
    monkeypatch.setattr(failed.session.machine, "_signal", lambda probability: 1 / 0)
    await failed.send(Audio(speech))
    with pytest.raises(AsrError, match="server failed"):
        await until_flush(failed)
    live.disconnect(failed, clean=True, resumable=False)
    draining = asyncio.create_task(live.drain())
    with pytest.raises(ShuttingDown):
        await until_flush(drained)
    live.disconnect(drained, clean=False)
    await draining
    assert [outcome for outcome, _ in observer.seen] == [SessionOutcome.FAILED, SessionOutcome.DRAINED]


async def test_nothing_goes_on_for_a_session_that_is_over(make, speech):
    """No task of its requests, word times and parts is left, and none of its audio."""
    before = asyncio.all_tasks()
    live = make(Scripted(lambda item: None))
    connection = await opened(live, words=WordTimes.ESTIMATED, parts=(PartRequest(lambda session: _Working()),))
    session = connection.session
    await connection.send(Audio(speech[:64_000]))
    await _until(lambda: session._requests)
    session._word_times._tasks.add(asyncio.create_task(asyncio.Event().wait()))
    session._estimates.add(asyncio.create_task(asyncio.Event().wait()))
    session._process = lambda incoming: asyncio.Event().wait()
    await connection.send(Audio(speech))
    live.disconnect(connection, clean=False, resumable=False)
    await _until(lambda: asyncio.all_tasks() == before)
    assert (len(session._inbox), live._shared.memory.held_bytes) == (0, 0)


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
    await connection.send(Audio(speech[:64_000]))
    await _until(lambda: connection.session.machine.current_partial and not connection.session.machine.busy)
    shown = connection.session.machine.current_partial
    live.disconnect(connection, clean=False)
    await _until(lambda: not connection.session._inbox and not connection.session.machine.busy)
    again = await live.resume(connection.session.id, 0)
    (first,) = [(await anext(again.messages())).message]
    assert isinstance(first, Partial)
    assert (first.utterance, first.text) == (shown.utterance, shown.text)
    again.session.end()


async def test_who_closes_in_silence_ends_no_utterance(make):
    """There is none: the next flush has the first final."""
    live = make(Scripted())
    connection = await opened(live)
    await connection.send(Audio(bytes(32_000)))
    live.disconnect(connection, clean=True)
    again = await live.resume(connection.session.id, 0)
    await again.send(Flush())
    await _until(lambda: not again.session._inbox)
    again.session.end()
    finals = [sent.message async for sent in again.messages() if isinstance(sent.message, Final)]
    assert [(final.utterance, final.ending) for final in finals] == [(1, Ending.FLUSH)]


async def test_a_configuration_counts_from_when_it_was_sent(make):
    """For the next change and for a client that comes back, also while it waits behind audio."""
    live = make(Scripted())
    connection = await opened(live)
    connection.session._process = lambda incoming: asyncio.Event().wait()
    await connection.send(Audio(bytes(3_200)))
    await connection.send(Configure(live.turn_config(manual=True, context="lamp")))
    rules = connection.session.rules
    assert (rules.detection, rules.context, connection.session.received_actions) == (Detection.MANUAL, "lamp", 1)
    connection.session.end()


async def test_audio_without_a_final_counts_in_what_all_sessions_hold(make, speech):
    """The engine has it, and the session keeps it until it is answered."""
    live = make(Scripted(lambda item: None))
    connection = await opened(live)
    await connection.send(Audio(speech))
    await connection.send(Flush())
    machine = connection.session.machine
    await _until(lambda: machine.backlog_samples and not connection.session._inbox)
    assert live._shared.memory.held_bytes >= 4 * machine.backlog_samples > 0
    live.disconnect(connection, clean=True, resumable=False)
    assert live._shared.memory.held_bytes == 0


async def test_a_pause_is_answered_with_the_lag_of_its_audio(make, speech):
    """What came long ago is that old; what has just come is new."""
    live = make(Scripted())
    connection = await opened(live)
    await connection.send(Audio(speech[:-28_800]))
    await _until(lambda: not connection.session._inbox)
    await asyncio.sleep(0.3)
    await connection.send(Flush())
    lags = {}
    async for outgoing in connection.messages():
        lags[type(outgoing.message)] = outgoing.lag_ms
        if isinstance(outgoing.message, Final):
            break
    assert 300 <= lags[Final] < 20_000
    assert 300 <= lags[UtteranceEnded] < 20_000
    connection.session.end()


async def test_of_a_connection_that_ends_twice_the_first_end_counts(make):
    """The session waits once, from then on."""
    observer = _Outcomes()
    live = make(Scripted(), observer=observer)
    connection = await opened(live)
    live.disconnect(connection, clean=True)
    live.disconnect(connection, clean=False, resumable=False)
    assert (len(live), live.waiting, observer.seen) == (1, 1, [])
    await live.resume(connection.session.id, 0)
    assert live.waiting == 0
    connection.session.end()


async def test_a_session_that_has_moved_does_not_wait_for_its_client(make):
    """That one is elsewhere: the place is free at once."""
    live, quota = make(Scripted()), Quota(0, 0)
    with quota.taken("ann", live=True) as place:
        connection = await live.open(LiveSessionOptions(live.turn_config(), place=place))
    live.disconnect(connection, clean=True, moved=True)
    assert (len(live), live.waiting, quota.live) == (0, 0, 0)


async def test_the_final_of_a_speaker_goes_before_all_partials(make, speech):
    """In the engine's queue."""
    connection = await opened(make(Scripted()))
    session, asked = connection.session, []

    async def transcribe(request, priority):
        asked.append((request.kind, priority))
        return TranscribeResult(request.ticket, "words")

    session._inference = SimpleNamespace(transcribe=transcribe)
    await connection.send(Audio(speech))
    await connection.send(Flush())
    await until_flush(connection)
    assert set(asked) == {(ResultKind.PARTIAL, Priority.PARTIAL), (ResultKind.FINAL, Priority.FINAL)}
    session.end()
