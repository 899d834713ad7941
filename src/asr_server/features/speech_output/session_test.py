"""Sessions over a scripted voice: bounds, cancellation at once, order, failures and the end of the server."""

import asyncio
import time

import numpy as np
import pytest

from asr_server.core import settings
from asr_server.core.audio import SPEECH_RATE
from asr_server.core.conftest import raises
from asr_server.core.errors import DeadlineExceeded, Overloaded, ShuttingDown, SpeechFailed, UnsupportedLanguage
from asr_server.features.speech_output import session as module
from asr_server.features.speech_output import session as session_module
from asr_server.features.speech_output.encoding.client import AudioEncoder
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.client import SpeechEngineClient
from asr_server.features.speech_output.engines.protocol import SpeechFinish, SpeechTraits, SpokenSentence, Voice
from asr_server.features.speech_output.events import (
    AudioChunk,
    Flushed,
    SentenceBegun,
    SentenceEnded,
    SessionDone,
    SessionStarted,
    SpeechCancelled,
)
from asr_server.features.speech_output.requests import SpeechOptions
from asr_server.features.speech_output.script import SpeechEngines
from asr_server.features.speech_output.session import SpeechOutbox, SpeechSessions
from asr_server.features.speech_output.synthesis import SpeechProcessor
from asr_server.schedule.admission import Admission
from asr_server.schedule.ports import RowDelta, RowDone, RowFailed
from asr_server.schedule.thread import EngineThread

PCM = SpeechOptions(voice="one", response_format=SpeechFormat.PCM)
TEN = "One. Two. Three. Four. Five. Six. Seven. Eight. Nine. Ten. "


class ScriptedVoice:
    """A batch of one row. A sentence is half a second of noise; `held` are sentences that wait, `broken` those
    that fail. `seen`: the texts of all rows in order."""

    urgent_slots = 1
    fits = True

    def __init__(self):
        self.row, self.seen, self.dropped, self.loaded = None, [], [], False
        self.held, self.broken = set(), set()
        self.traits = SpeechTraits((Voice("one", "a voice"),), languages=("en",))

    @property
    def free_slots(self):
        return int(self.row is None)

    def load(self):
        self.loaded = True

    def unload(self):
        self.loaded = False

    def admit(self, key, item, urgent=False):
        self.row = key, item.text
        self.seen.append(item.text)

    def drop(self, key):
        if self.row is not None and self.row[0] == key:
            self.dropped.append(self.row[1])
            self.row = None

    def step(self, begin_s=None):
        time.sleep(0.001)
        if self.row is None or self.row[1] in self.held:
            return
        (key, text), self.row = self.row, None
        if text in self.broken:
            yield RowFailed(key, SpeechFailed("The voice failed."))
            return
        noise = np.random.default_rng(len(text)).uniform(-0.5, 0.5, SPEECH_RATE // 4).astype(np.float32)
        for _ in range(2):
            yield RowDelta(key, noise)
        yield RowDone(key, SpokenSentence(SpeechFinish.END, 2 * len(noise)))


@pytest.fixture
async def made():
    """Makes sessions over one voice; `made.voice`, `made.thread`, `made.admission` and `made.encoder` are theirs."""
    maker = _Maker()
    yield maker
    for session in list(maker.open):
        await maker.sessions.close(session, "")
    await asyncio.to_thread(maker.thread.close)
    await maker.encoder.close()


class _Maker:
    def __init__(self):
        self.voice, self.open = ScriptedVoice(), []
        self.thread = EngineThread(self.voice, idle_timeout_s=0.1)
        self.admission = Admission(1_000.0)
        self.encoder = AudioEncoder()
        self.limits()

    def limits(self, characters=400, sentence_s=60.0):
        """Those of sessions from now on."""
        client = SpeechEngineClient(self.thread, self.voice.traits, "scripted")
        values = settings.load(model_id="fake").model_copy(update={"max_speech_chars": characters})
        engines = SpeechEngines((client,))
        self.processor = SpeechProcessor(engines, self.encoder, self.admission, values, sentence_s)
        self.sessions = SpeechSessions(self.processor)

    async def session(self, **options):
        """A started session that nobody reads yet, behind its first event."""
        session = self.sessions.open()
        self.open.append(session)
        events = session.events()
        starting = asyncio.create_task(
            session.start(SpeechOptions(**{"voice": "one", "response_format": SpeechFormat.PCM, **options}))
        )
        assert isinstance(await anext(events), SessionStarted)
        await starting
        return session, events

    @property
    def idle(self):
        """Whether the engine has nothing to do for anybody."""
        snapshot = self.thread.snapshot()
        return snapshot.running == 0 and not any(snapshot.depth.values()) and self.admission.held_s == 0


async def _until(holds):
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - another thread works
            await asyncio.sleep(0.002)


async def _collect(events, told):
    while True:
        told.append(await anext(events))


async def _all(events):
    return [event async for event in events]


async def _cancelled(session, events):
    """What is still told after a cancel, up to and with its answer."""
    cancelling = asyncio.create_task(session.cancel())
    await asyncio.sleep(0)  # else the event that waits would be taken before
    told = []
    while not told or not isinstance(told[-1], SpeechCancelled):
        told.append(await anext(events))
    await cancelling
    return told


def _audio(events):
    return b"".join(event.data for event in events if isinstance(event, AudioChunk))


async def test_a_text_is_told_sentence_by_sentence(made):
    """Each sentence, its audio, its end; places and lengths count the samples that were sent."""
    session, events = await made.session(pause_ms=100)
    await session.push("One. Tw")
    await session.push("o")
    session.flush(ends=True)
    told = await _all(events)
    kinds = [type(event) for event in told if not isinstance(event, AudioChunk)]
    assert kinds == [SentenceBegun, SentenceEnded, SentenceBegun, SentenceEnded, SessionDone]
    begun = [(event.index, event.text, event.start_samples) for event in told if isinstance(event, SentenceBegun)]
    assert begun == [(0, "One.", 0), (1, "Two", SPEECH_RATE // 2)]
    lengths = [event.samples for event in told if isinstance(event, SentenceEnded)]
    assert lengths == [SPEECH_RATE // 2, SPEECH_RATE // 10 + SPEECH_RATE // 2]
    assert len(_audio(told)) == 2 * sum(lengths)
    assert told[-1] == SessionDone(2, sum(lengths))


async def test_the_engine_is_at_most_two_sentences_ahead_of_what_is_taken(made):
    """Of ten that wait, it speaks three until the first was taken."""
    session, events = await made.session()
    await session.push(TEN)
    session.flush()
    await _until(lambda: len(made.voice.seen) == 3 and made.voice.row is None)
    await asyncio.sleep(0.05)
    assert len(made.voice.seen) == 3
    for taken in range(1, 8):
        while not isinstance(await anext(events), SentenceEnded):
            pass
        assert isinstance(await anext(events), SentenceBegun)  # it is only put once the end was taken
        await _until(lambda taken=taken: len(made.voice.seen) == taken + 3 and made.voice.row is None)


async def test_a_cancel_cancels_the_jobs_and_takes_back_what_waits(made):
    """Of a session that has something at the engine, in its queue and on its way to the client."""
    made.voice.held = {"Three."}
    session, events = await made.session()
    await session.push(TEN)
    while not isinstance(await anext(events), AudioChunk):
        pass
    await _until(lambda: made.voice.row is not None and session._outbox._waiting)
    assert not made.idle
    assert await _cancelled(session, events) == [SpeechCancelled(0, session.sent_samples)]
    await _until(lambda: made.idle)
    assert made.voice.dropped == ["Three."]
    assert len(made.voice.seen) == 3


async def test_after_a_cancel_the_next_text_is_spoken_as_the_first(made):
    """The same samples; numbers and places go on behind what was sent."""
    session, events = await made.session()
    await session.push("Begun and never")
    await session.push(" finished. ")
    assert (await _cancelled(session, events)) == [SpeechCancelled(0, 0)]
    await session.push("One. Two.")
    session.flush()
    first = [await anext(events)]
    while not isinstance(first[-1], Flushed):
        first.append(await anext(events))
    sent = len(_audio(first)) // 2
    assert await _cancelled(session, events) == [SpeechCancelled(2, sent)]
    await session.push("One. Two.")
    session.flush(ends=True)
    second = await _all(events)
    assert _audio(second) == _audio(first)
    begun = [event for event in second if isinstance(event, SentenceBegun)]
    assert (begun[0].index, begun[0].start_samples) == (2, sent)
    assert second[-1] == SessionDone(4, 2 * sent)


async def test_a_cancel_after_the_end_still_ends(made):
    """The rest is not spoken; the session is done."""
    made.voice.held = {"Two."}
    session, events = await made.session()
    await session.push(TEN)
    session.flush(ends=True)
    with raises("invalid_event"):
        await session.push("More")
    assert await _cancelled(session, events) == [SpeechCancelled(0, 0)]
    assert await _all(events) == [SessionDone(0, 0)]


async def test_the_jobs_of_a_connection_that_is_gone_are_cancelled(made):
    """Whoever closes while the engine works leaves nothing behind."""
    made.voice.held = {"One."}
    session, _ = await made.session()
    await session.push(TEN)
    await _until(lambda: made.voice.row is not None)
    await made.sessions.close(session, "")
    await _until(lambda: made.idle)
    assert (made.voice.dropped, made.voice.seen) == (["One."], ["One."])
    assert len(made.sessions) == 0


async def test_who_only_connects_costs_nothing(made):
    """Not with half a sentence either: no engine is loaded and no process is started."""
    session, _ = await made.session()
    await session.push("Half a sentence")
    await asyncio.sleep(0.05)
    assert (made.voice.loaded, made.thread.snapshot().running, made.admission.held_s) == (False, 0, 0)


async def test_between_two_texts_nothing_is_held(made):
    """Once all that has arrived was spoken, also while a text is open: the engine is unloaded when its time comes."""
    session, events = await made.session()
    await session.push("One. Two")
    while not isinstance(await anext(events), SentenceEnded):
        pass
    await _until(lambda: made.idle and not made.voice.loaded)
    session.flush()
    while not isinstance(await anext(events), Flushed):
        pass


async def test_more_text_than_may_wait_is_refused_whole(made):
    """And nothing of it is spoken; there is room again when a sentence has begun."""
    session, events = await made.session()
    words = "Word " * 78
    await session.push(f"One. {words}")
    with raises("string_above_max_length"):
        await session.push("refused.")
    assert isinstance(await anext(events), SentenceBegun)
    await session.push("taken.")
    session.flush(ends=True)
    begun = [event.text for event in await _all(events) if isinstance(event, SentenceBegun)]
    assert begun == [f"{words}taken."]


async def test_a_text_in_a_language_without_a_voice_is_forgotten(made):
    """The session goes on, and its flush and its end are answered."""
    session, events = await made.session()
    with pytest.raises(UnsupportedLanguage):
        await session.push("Раз. Два. Т")
    for ends, answer in ((False, Flushed), (True, SessionDone)):
        await session.push("Раз")
        with pytest.raises(UnsupportedLanguage):
            session.flush(ends=ends)
        assert isinstance(await anext(events), answer)


async def test_flushes_have_a_bound(made):
    """Each waits for its answer, so that they count as characters."""
    session, _ = await made.session()
    for _ in range(400):
        session.flush()
    with raises("string_above_max_length"):
        session.flush()


async def test_a_full_server_refuses(made):
    """As it refuses a request."""
    made.admission = Admission(1.0)
    made.limits()
    made.voice.held = {"One."}
    first, _ = await made.session()
    await first.push(TEN)
    second, _ = await made.session()
    with pytest.raises(Overloaded):
        await second.push(TEN)


async def test_a_caller_has_a_share_of_what_may_wait(made):
    """Of all its sockets together; nothing of the message is taken, and others have their part."""
    made.admission = Admission(60.0, share_s=30.0)
    made.limits(characters=2_000)
    made.voice.held = {"One."}
    sessions = [made.sessions.open(share) for share in ("key", "key", "other")]
    made.open += sessions
    for session in sessions:
        starting = asyncio.create_task(session.start(SpeechOptions(voice="one", response_format=SpeechFormat.PCM)))
        await anext(session.events())
        await starting
    first, second, other = sessions
    text = "One. " + "Two words. " * 30  # 24 s
    await first.push(text)
    with pytest.raises(Overloaded, match="one caller may have"):
        await second.push(text)
    assert (second.characters, second.queue.sentences) == (0, 0)
    await second.push("Two words.")
    await other.push(text)
    with pytest.raises(Overloaded, match="The server has all the work"):
        await other.push(text)


async def test_texts_that_come_at_the_same_time_have_one_limit_together(made):
    """A long text is divided in slices. Its undivided rest counts from the beginning."""
    made.admission = Admission(6_000.0)
    made.limits(characters=40_000)
    made.voice.held = {"One."}
    text = "One. " + "Two words. " * 3_000  # 2,400 s
    sessions = [(await made.session())[0] for _ in range(3)]
    ends = await asyncio.gather(*(session.push(text) for session in sessions), return_exceptions=True)
    assert [type(end) for end in ends if end is not None] == [Overloaded]


async def test_a_sentence_that_fails_ends_the_session(made):
    """What was spoken before is told before; the others are cancelled."""
    made.voice.broken = {"Three."}
    session, events = await made.session()
    await session.push(TEN)
    told = []
    with pytest.raises(SpeechFailed):
        await _collect(events, told)
    assert [event.index for event in told if isinstance(event, SentenceEnded)] == [0, 1]
    await made.sessions.close(session, "")
    await _until(lambda: made.idle)


async def test_a_sentence_has_a_time_limit(made):
    """At the engine; the session ends with it."""
    made.limits(sentence_s=0.2)
    made.voice.held = {"One."}
    session, events = await made.session()
    await session.push(TEN)
    assert isinstance(await anext(events), SentenceBegun)
    with pytest.raises(DeadlineExceeded):
        await anext(events)
    await made.sessions.close(session, "")
    await _until(lambda: made.idle)


async def test_an_idle_session_ends(made, monkeypatch):
    """One with half a sentence too; one that waits for its engine does not."""
    monkeypatch.setattr(session_module, "IDLE_S", 0.2)
    made.voice.held = {"One."}
    (idle, idle_events), (busy, busy_events) = [await made.session() for _ in range(2)]
    await idle.push("Half a")
    await busy.push(TEN)
    assert isinstance(await anext(busy_events), SentenceBegun)
    waiting = asyncio.create_task(anext(busy_events))
    with raises("session_expired"):
        await anext(idle_events)
    await asyncio.sleep(0.4)
    assert not waiting.done()
    made.voice.held = set()
    assert isinstance(await waiting, AudioChunk)


async def test_at_the_servers_end_the_present_sentence_is_finished(made):
    """And no other; the end waits for that, and opens no more sessions."""
    session, events = await made.session()
    waiting, waiting_events = await made.session()
    unstarted = made.sessions.open()
    await session.push(TEN)
    told = [await anext(events) for _ in range(2)]
    draining = asyncio.create_task(made.sessions.drain())
    await asyncio.sleep(0)
    await session.push("Ignored. ")
    with pytest.raises(ShuttingDown):
        await _collect(events, told)
    kinds = [type(event) for event in told]
    assert (kinds.count(SentenceBegun), kinds[-1]) == (1, SentenceEnded)
    assert len(_audio(told)) == SPEECH_RATE
    for each, other in ((waiting, waiting_events), (unstarted, unstarted.events())):
        with pytest.raises(ShuttingDown):
            await anext(other)
        await made.sessions.close(each, "")
    assert not draining.done()
    await made.sessions.close(session, "")
    await draining
    with pytest.raises(ShuttingDown):
        made.sessions.open()


async def test_a_cancel_at_the_servers_end_stops_at_once(made):
    """Nothing of the sentence follows."""
    made.voice.held = {"One."}
    session, events = await made.session()
    await session.push(TEN)
    assert isinstance(await anext(events), SentenceBegun)
    session.finish_sentence()
    await session.cancel()
    with pytest.raises(ShuttingDown):
        await anext(events)
    await _until(lambda: made.idle)


async def test_a_session_starts_once_and_with_what_there_is(made):
    """A voice that does not exist is refused, and another can be named."""
    session = made.sessions.open()
    with raises("invalid_value"):
        await session.start(SpeechOptions(voice="nobody"))
    assert not session.started
    session, _ = await made.session(instructions="Whisper.")
    with raises("invalid_event"):
        await session.start(PCM)


async def test_who_takes_nothing_stops_only_itself(made):
    """Another session is served meanwhile."""
    stuck, _ = await made.session()
    await stuck.push(TEN)
    session, events = await made.session()
    await session.push("One.")
    session.flush(ends=True)
    assert isinstance((await _all(events))[-1], SessionDone)


async def test_who_cancels_without_end_is_read_later(made, monkeypatch):
    """The answer comes at once; a few interruptions in a row cost nothing."""
    monkeypatch.setattr(module, "_CANCELS", 3)
    monkeypatch.setattr(module, "_CANCELS_PER_S", 20.0)
    session, events = await made.session()
    began_s = time.monotonic()
    for _ in range(6):
        cancelling = asyncio.create_task(session.cancel())
        assert isinstance(await anext(events), SpeechCancelled)
        await cancelling
    assert time.monotonic() - began_s >= 0.13


async def test_a_long_piece_is_taken_in_slices(made):
    """Others have their turns meanwhile, and its sentences are those of the whole."""
    made.limits(characters=20_000)
    session, _ = await made.session()
    turns = []

    async def others():
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await session.push("This is a sentence of a text. " * 300)
    beside.cancel()
    assert len(turns) > 30
    assert session.queue.sentences >= 298


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
    """A reader that waits for an event that is taken back continues."""
    outbox = SpeechOutbox()
    events = (AudioChunk(b"ab", 1), SpeechCancelled(1, 1), SentenceEnded(0, 1), Flushed(), SessionDone(1, 1))
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
