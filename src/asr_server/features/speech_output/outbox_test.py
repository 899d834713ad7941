"""The events of a speech session on their way to its client."""

import asyncio

import pytest

from asr_server.core.errors import ShuttingDown
from asr_server.features.speech_output.outbox import (
    Flushed,
    SentenceEnded,
    SessionDone,
    SpeechCancelled,
    SpeechOutbox,
    SpokenAudio,
)


async def test_an_event_is_put_when_it_is_taken():
    """Equal ones too, each in its turn: what the client does not read is not made."""
    outbox, put = SpeechOutbox(), []

    async def speak():
        for number in range(3):
            await outbox.put(Flushed())
            put.append(number)

    speaking = asyncio.create_task(speak())
    for number in range(3):
        await asyncio.sleep(0.01)
        assert put == list(range(number))
        assert await outbox.take(1.0) == Flushed()
    await speaking
    with pytest.raises(TimeoutError):
        await outbox.take(0.01)


async def test_a_cancel_takes_back_what_is_spoken_and_nothing_else():
    """Whoever waits for an event that is taken back goes on."""
    outbox = SpeechOutbox()
    events = (SpokenAudio(b"ab", 1), SpeechCancelled(1, 1), SentenceEnded(0, 1), Flushed(), SessionDone(1, 1))
    waiting = [asyncio.create_task(outbox.put(event)) for event in events]
    await asyncio.sleep(0)
    outbox.drop_speech()
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, False, True, True, False]
    assert [await outbox.take(1.0) for _ in range(2)] == [SpeechCancelled(1, 1), SessionDone(1, 1)]
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("error", [None, ShuttingDown("now")])
async def test_what_waits_at_the_end_is_still_taken(error):
    """Then comes the end, or the first error; nothing is added any more, and nobody waits."""
    outbox = SpeechOutbox()
    waiting = asyncio.create_task(outbox.put(SessionDone(1, 1)))
    await asyncio.sleep(0)
    outbox.close(error)
    outbox.close(ValueError("a later one"))
    async with asyncio.timeout(1):
        await waiting
        await outbox.put(Flushed())
    assert await outbox.take(1.0) == SessionDone(1, 1)
    for _ in range(2):
        if error is None:
            assert await outbox.take(1.0) is None
        else:
            with pytest.raises(ShuttingDown):
                await outbox.take(1.0)


async def test_a_reader_that_waits_gets_the_next_event_and_the_end():
    """A reader that waits gets the next event without a second call."""
    outbox = SpeechOutbox()
    first = asyncio.create_task(outbox.take(1.0))
    await asyncio.sleep(0)
    await outbox.put(Flushed())
    assert await first == Flushed()
    last = asyncio.create_task(outbox.take(1.0))
    await asyncio.sleep(0)
    outbox.close()
    assert await last is None
