"""Sessions over a scripted engine: bounds, cancellation at once, order, failures and the end of the server."""

import asyncio
import time

import pytest

from asr_server.core.conftest import raises, until
from asr_server.core.errors import DeadlineExceeded, Overloaded, ShuttingDown, SpeechFailed
from asr_server.features.speech_output import session as module
from asr_server.features.speech_output.conftest import is_free
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.requests import SpeechOptions
from asr_server.net.loop_time import SAVED_S, SHARE, loop_time
from asr_server_fake.script import Fault, SpeechRule

pytestmark = pytest.mark.asyncio(loop_scope="package")

TEN = "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten. "


def opened(made, share=""):
    """A session, and the messages to its client, which takes one when a test asks for it."""
    waiting = {}

    async def send(message):
        waiting[key := object()] = message
        try:
            await until(lambda: key not in waiting)
        finally:
            waiting.pop(key, None)  # one that is cancelled is not sent

    async def messages():
        while True:
            await until(lambda: waiting or task.done())
            if not waiting:
                task.result()
                return
            yield waiting.pop(next(iter(waiting)))

    session = made.sessions.open(send, share)
    task = asyncio.create_task(session.run())
    made.open.append((session, task))
    return session, messages()


async def started(made, share="", **options):
    """A session that nobody reads yet, after its first message."""
    session, messages = opened(made, share)
    options = SpeechOptions(response_format=SpeechFormat.PCM, **options)
    starting = asyncio.create_task(session.start(options))
    assert (await anext(messages))["type"] == "started"
    await starting
    return session, messages


def kind_of(message):
    return "audio" if isinstance(message, bytes) else message["type"]


async def heard(messages, last, found=None):
    """The messages up to one of this type."""
    found = [] if found is None else found  # a test may look at those before an error
    while not found or kind_of(found[-1]) != last:
        found.append(await anext(messages))
    return found


async def cancelled(session, messages):
    """Cancel, and return the messages up to the answer."""
    cancelling = asyncio.create_task(session.cancel())
    await asyncio.sleep(0.01)  # else the message that waits would be taken before
    found = await heard(messages, "cancelled")
    await cancelling
    return found


async def test_the_engine_is_at_most_two_sentences_ahead_of_what_is_taken(speech):
    """Of ten that wait, it speaks three until the first was taken."""
    made = speech()
    session, messages = await started(made)
    await session.push(TEN)
    session.flush()
    await until(lambda: len(made.engine.seen) == 3 and not made.thread.snapshot().running)
    await asyncio.sleep(0.05)
    assert len(made.engine.seen) == 3
    for taken in range(1, 8):
        await heard(messages, "sentence_done")
        await heard(messages, "sentence")  # it is only put once the end was taken
        await until(lambda taken=taken: len(made.engine.seen) == taken + 3)


async def test_a_cancel_cancels_the_jobs_and_takes_back_what_waits(speech):
    """Of a session that has something at the engine, in its queue and on its way to the client."""
    made = speech()
    made.engine.held = {"Three."}
    session, messages = await started(made)
    await session.push(TEN)
    session.flush()
    found = await heard(messages, "audio")
    ended = lambda: made.registry.get_sample_value("asr_speech_encoding_seconds_count")  # noqa: E731
    await until(lambda: ended() == 1 and made.thread.snapshot().running == 1)
    sent_ms = round(sum(len(message) for message in found if isinstance(message, bytes)) / 48)
    assert await cancelled(session, messages) == [{"type": "cancelled", "sentences_done": 0, "sent_ms": sent_ms}]
    await until(lambda: is_free(made))
    assert made.engine.dropped == ["Three."]
    assert len(made.engine.seen) == 3


async def test_a_flush_and_an_end_that_were_not_answered_are_cancelled_too(speech):
    """The answer of the flush waits when the cancel comes. After the end the rest is not spoken, and the session is
    done."""
    made = speech()
    made.engine.held = {"Two."}
    session, messages = await started(made)
    session.flush()
    await asyncio.sleep(0.05)
    assert await cancelled(session, messages) == [{"type": "cancelled", "sentences_done": 0, "sent_ms": 0}]
    await session.push(TEN)
    session.flush(ends=True)
    with raises("invalid_event"):
        await session.push("More")
    assert await cancelled(session, messages) == [{"type": "cancelled", "sentences_done": 0, "sent_ms": 0}]
    assert [message async for message in messages] == [{"type": "done", "sentences": 0, "duration_ms": 0}]


async def test_between_two_texts_nothing_is_held(speech):
    """Once all that has arrived was spoken, also while a text is open: the engine is unloaded when its time comes."""
    made = speech()
    session, messages = await started(made)
    await session.push("Half a sentence")
    await asyncio.sleep(0.05)
    assert not made.engine.loaded
    await session.push(". Two")
    await heard(messages, "sentence_done")
    await until(lambda: not (made.engine.loaded or made.processor.admission.held_s))
    session.flush()
    await heard(messages, "flushed")


async def test_what_waits_has_a_bound(speech):
    """Flushes count as characters, since each waits for its answer. There is room again when a sentence has begun."""
    session, messages = await started(speech(characters=400))
    words = "Word " * 79
    await session.push(f"One. {words}")
    with raises("string_above_max_length"):
        await session.push("refused.")
    await heard(messages, "sentence")
    await session.push("so.")
    for _ in range(2):
        session.flush()
    with raises("string_above_max_length"):
        session.flush()
    found = await heard(messages, "flushed")
    assert [message["text"] for message in found if kind_of(message) == "sentence"] == [f"{words}so."]


async def test_a_caller_has_a_share_of_what_may_wait(speech):
    """Of all its sockets together; nothing of the message is taken, and others have their part."""
    made = speech(limit_s=60.0, share_s=30.0)
    made.engine.held = {"One."}
    first, second, other = [(await started(made, share))[0] for share in ("key", "key", "other")]
    text = "One. " + "Two words. " * 30  # 24 s
    await first.push(text)
    with pytest.raises(Overloaded, match="one caller may have"):
        await second.push(text)
    assert (second.characters, second.queue.sentences) == (0, 0)
    await second.push("Two words.")
    await other.push(text)
    with pytest.raises(Overloaded, match="The server has all the work"):
        await other.push(text)


async def test_texts_that_come_at_the_same_time_have_one_limit_together(speech):
    """A long text is divided in slices. Its undivided rest counts from the beginning."""
    made = speech(limit_s=6_000.0, characters=40_000)
    made.engine.held = {"One."}
    text = "One. " + "Two words. " * 3_000  # 2,400 s
    sessions = [(await started(made))[0] for _ in range(3)]
    ends = await asyncio.gather(*(session.push(text) for session in sessions), return_exceptions=True)
    assert [type(end) for end in ends if end is not None] == [Overloaded]


@pytest.mark.parametrize(
    ("held", "timeout_s", "error", "done"), [(set(), 60.0, SpeechFailed, [0, 1]), ({"One."}, 0.2, DeadlineExceeded, [])]
)
async def test_a_sentence_that_fails_or_takes_too_long_ends_the_session(speech, held, timeout_s, error, done):
    made, found = speech(SpeechRule(text="Three", fault=Fault.RAISE), timeout_s=timeout_s), []
    made.engine.held = held
    session, messages = await started(made)
    await session.push(TEN)
    with pytest.raises(error):
        await heard(messages, "done", found)
    assert [message["index"] for message in found if kind_of(message) == "sentence_done"] == done


async def test_an_idle_session_ends(speech, monkeypatch):
    """One with half a sentence too; one that waits for its engine does not."""
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    made = speech()
    made.engine.held = {"One."}
    (idle, idle_messages), (busy, busy_messages) = [await started(made) for _ in range(2)]
    await idle.push("Half a")
    await busy.push(TEN)
    await heard(busy_messages, "sentence")
    waiting = asyncio.create_task(anext(busy_messages))
    with raises("session_expired"):
        await anext(idle_messages)
    await asyncio.sleep(0.4)
    assert not waiting.done()
    made.engine.held = set()
    assert isinstance(await waiting, bytes)


async def test_at_the_servers_end_sessions_without_a_sentence_end_and_no_others_open(speech):
    """The contract tests have one with a sentence."""
    made = speech()
    sessions = [await started(made), opened(made)]
    draining = asyncio.create_task(made.sessions.drain())
    for session, messages in sessions:
        with pytest.raises(ShuttingDown):
            await anext(messages)
        assert not draining.done()
        await made.sessions.close(session, "")
    await draining
    with pytest.raises(ShuttingDown):
        opened(made)


async def test_texts_that_are_cancelled_one_after_the_other_wait_longer(speech, monkeypatch):
    """A cancelled text has begun work for nothing. It costs its caller loop time, in all of its sessions."""
    monkeypatch.setattr(module, "CANCEL_S", SAVED_S + 0.2 * SHARE)
    made, times = speech(), loop_time()
    sessions = [await started(made, "ann") for _ in range(2)]
    with times.working(times.of("bob")):
        began_s = time.monotonic()
        for session, messages in sessions:
            await cancelled(session, messages)
        assert time.monotonic() - began_s >= 0.15
