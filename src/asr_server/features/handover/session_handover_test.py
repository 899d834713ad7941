"""Live sessions that go on with another server: what this one says, keeps and gives away."""

import asyncio

import pytest

from asr_server.core.audio import FRAME_SAMPLES
from asr_server.core.errors import SessionNotFound, SessionTaken, ShuttingDown
from asr_server.features.handover.continuation import Continuation
from asr_server.features.handover.handover import ContinuationIssued, MoveRequested, SessionHandover, requested
from asr_server.live.conftest import Scripted, opened, until_flush
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import Audio, Ending, Final, Flush
from asr_server.live.options import LiveSessionOptions
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority
from asr_server.schedule.quota import Quota

_ID = "live_0123abcd." + 22 * "x"


def moving(begin=None, shown=None, received=0):
    """The options of a session that may move."""
    return {"begin": begin, "parts": (requested(begin, shown, received),)}


def handover_of(session):
    """The handover of a session."""
    return next(part for part in session.parts if isinstance(part, SessionHandover))


async def test_a_client_gets_its_word_times_before_it_is_asked_to_move(make, speech):
    """The next server does not have them."""
    live = make(Scripted())
    connection = await opened(live, words=WordTimes.ESTIMATED, **moving())
    session, said = connection.session, []

    async def late():
        await asyncio.sleep(0.05)
        session._send(WordTimestamps(1, ()))

    session._word_times._tasks.add(asyncio.create_task(late()))
    draining = asyncio.create_task(live.drain())
    async for outgoing in connection.messages():
        said.append(type(outgoing.message))
        if isinstance(outgoing.message, MoveRequested):
            break
    assert said[-2:] == [WordTimestamps, MoveRequested]
    live.disconnect(connection, clean=False, moved=True)
    await draining


async def test_a_continuation_says_that_speech_was_divided_there(make, speech):
    """A flush in the middle of a word divides it."""
    connection = await opened(make(Scripted()), **moving())
    await connection.send(Audio(speech[: 2 * 18 * FRAME_SAMPLES]))
    await connection.send(Flush())
    await until_flush(connection)
    assert handover_of(connection.session).continuation(connection.session.machine).in_speech


async def test_a_session_that_goes_on_in_silence_leaves_it_out(make, speech):
    """The server before would have left it out too."""
    connection = await opened(make(Scripted()), **moving(Continuation(_ID, "")))
    await connection.send(Audio(bytes(32_000) + speech))
    await connection.send(Flush())
    first = next(message for message in await until_flush(connection) if isinstance(message, Final))
    assert first.start_samples > 12_000


@pytest.mark.parametrize("frame", range(9, 100, 6))
async def test_a_session_goes_on_in_the_middle_of_speech_without_losing_any(make, speech, frame):
    """Voice detection without history hears some of it 0.6 s late."""
    place = Continuation(
        _ID, "", samples=frame * FRAME_SAMPLES, received_bytes=2 * frame * FRAME_SAMPLES, in_speech=True
    )
    connection = await opened(make(Scripted()), **moving(place))
    await connection.send(Audio(speech[place.received_bytes :]))
    await connection.send(Flush())
    first = next(message for message in await until_flush(connection) if isinstance(message, Final))
    assert (first.text, first.start_samples) == ("words", 0)


async def test_a_session_that_waits_for_its_client_is_not_asked_to_move_and_not_waited_for(make):
    """Nobody would read it."""
    live = make(Scripted(), handover_s=10)
    connection = await opened(live, **moving())
    live.disconnect(connection, clean=False)
    async with asyncio.timeout(5):
        await live.drain()
    assert len(live) == 0


async def test_all_sessions_are_asked_to_move_at_once(make):
    """They are not asked one after the other."""
    live = make(Scripted(), handover_s=10)
    connections = [await opened(live, **moving()) for _ in range(3)]
    draining = asyncio.create_task(live.drain())
    for connection in connections:
        async with asyncio.timeout(5):
            while not isinstance((await anext(connection.messages())).message, MoveRequested):
                pass
    for connection in connections:
        live.disconnect(connection, clean=False, moved=True)
    async with asyncio.timeout(5):
        await draining


async def test_a_server_that_ends_takes_no_session_that_moves(make):
    """The server takes none that it has itself either: the client is to go on with another one."""
    live = make(Scripted())
    begin = Continuation(_ID, 16 * "0")
    connection = await live.open(LiveSessionOptions(live.turn_config(), **moving(begin)))
    live._draining = True
    newest = handover_of(connection.session).newest
    with pytest.raises(ShuttingDown):
        await live.go_on(newest, 0, LiveSessionOptions(live.turn_config(), **moving(begin)))
    assert connection.session.is_current(connection.outbox)
    connection.session.end()


async def test_a_state_gives_nobody_the_session_of_another(make):
    """There is no such session for others; whoever has it keeps it."""
    live = make(Scripted())
    begin = Continuation(_ID, 16 * "0")
    connection = await live.open(LiveSessionOptions(live.turn_config(), owner="ann", **moving(begin)))
    with pytest.raises(SessionNotFound):
        await live.go_on(begin, 0, LiveSessionOptions(live.turn_config(), owner="ben", **moving(begin)))
    with pytest.raises(SessionTaken):
        await live.open(LiveSessionOptions(live.turn_config(), owner="ben", **moving(begin)))
    assert connection.session.is_current(connection.outbox)
    connection.session.end()


async def test_a_stale_session_gives_way_to_the_newer_state_and_leaves_nothing(make):
    """Its client has gone on with another server since."""
    live, quota = make(Scripted()), Quota(0, 0)
    begin = Continuation(_ID, 16 * "0", 2, 32_000, 64_000, 3)
    with quota.taken("ann", live=True) as place:
        stale = await live.open(LiveSessionOptions(live.turn_config(), place=place, **moving(begin, received=2)))
    live.disconnect(stale, clean=False)
    with quota.taken("ann", live=True, resumes=_ID) as place:
        fresh = await live.go_on(
            begin, 2, LiveSessionOptions(live.turn_config(), place=place, **moving(begin, received=2))
        )
    assert (fresh.session is stale.session, stale.session.ended, len(live), quota.live) == (False, True, 1, 1)
    assert (fresh.session.received_bytes, fresh.session.received_actions, live.waiting) == (64_000, 3, 0)
    live.disconnect(fresh, clean=True, resumable=False)
    assert quota.live == 0


async def test_a_client_that_comes_back_gets_the_newest_continuation(make):
    """A client may have lost the continuation that was on its way."""
    live = make(Scripted())
    connection = await opened(live, **moving())
    live.disconnect(connection, clean=False)
    again = await live.resume(connection.session.id, 0)
    issued = (await anext(again.messages())).message
    assert isinstance(issued, ContinuationIssued)
    assert issued.continuation.session_id == again.session.id
    again.session.end()


async def test_a_session_that_moved_here_is_as_fast_as_its_audio_since(make):
    """An hour that others had is no recording that is sent at once."""
    live = make(Scripted())
    begin = Continuation(_ID, 16 * "0", samples=16_000 * 3_600, received_bytes=32_000 * 3_600)
    connection = await opened(live, **moving(begin))
    assert connection.session._priority is Priority.PARTIAL
    await connection.send(Audio(bytes(32_000 * 120)))
    assert connection.session._priority is Priority.INTERACTIVE
    connection.session.end()


async def test_what_comes_behind_the_end_of_a_drain_is_left_to_the_next_server(make, speech):
    """It is not answered, and counts neither as audio nor as an action in the continuation, nor does the end itself."""
    live = make(Scripted())
    connection = await opened(live, **moving())
    session = connection.session
    await connection.send(Audio(speech[:64_000]))
    await session.finish()
    for event in (Audio(speech), Flush()):
        await connection.send(event)
    while session._inbox:
        await session._next_change()
    newest = handover_of(session).continuation(session.machine)
    assert (newest.received_bytes, newest.actions, newest.utterances) == (64_000, 0, 1)
    session.end()
    assert len([sent async for sent in connection.messages() if isinstance(sent.message, Final)]) == 1


@pytest.mark.parametrize("received", [5, 6, 7, 8])
async def test_a_client_that_comes_back_to_a_session_that_moved_here_gets_the_finals_that_it_has_not(make, received):
    """The client counts the utterances of all servers: five were elsewhere, and the first one here is its sixth."""
    live = make(Scripted())
    begin = Continuation("live_0123abcd." + 22 * "x", 16 * "0", 5)
    connection = await opened(live, **moving(begin, received=5))
    for number in (1, 2, 3):
        connection.session._send(Final(number, "words", "English", 0, 1, Ending.CUT), 0)
    live.disconnect(connection, clean=False)
    again = await live.resume(connection.session.id, received)
    connection.session.end()
    finals = [sent.message.utterance + 5 async for sent in again.messages() if isinstance(sent.message, Final)]
    assert finals == [6, 7, 8][received - 5 :]
