"""The messages that wait for a live client, and the parts of its session."""

from dataclasses import dataclass, replace

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.live import route
from asr_server.live.conftest import Scripted, opened
from asr_server.live.machine.events import Audio, Ending, Final, Partial, UtteranceStarted
from asr_server.live.outbox import Outbox, Outgoing, SessionPart, TextDetails, missed


@dataclass(frozen=True, slots=True)
class _Mood(TextDetails):
    utterance: int
    mood: str
    size_bytes = 5_000

    @property
    def is_empty(self):
        return not self.mood

    def fields(self):
        return {"mood": self.mood}

    def wire(self):
        return {"utterance": self.utterance, **self.fields()}


def _partial(utterance, text):
    return Outgoing(Partial(utterance, "", text, "", 0, 0))


def _final(utterance, text="x"):
    return Outgoing(Final(utterance, text, "", 0, 0, Ending.PAUSE))


async def _read(outbox):
    return [outgoing.message async for outgoing in outbox.messages()]


async def test_a_newer_partial_takes_the_place_of_one_that_was_not_sent():
    """The newest of an utterance goes out. The start of an utterance, finals and other utterances stay."""
    outbox, started = Outbox(), UtteranceStarted(1, 0)
    partials = (_partial(1, "a"), _partial(1, "a b"), _final(1), _partial(2, "c"), _partial(2, "c d"))
    for outgoing in (Outgoing(started), *partials):
        outbox.put(outgoing)
    outbox.close()
    first, *others = await _read(outbox)
    assert (first, [message.text for message in others]) == (started, ["a b", "x", "c d"])


async def test_details_of_a_text_take_room_until_they_are_taken():
    """A text takes the room of its words and the `size_bytes` of its details."""
    outbox = Outbox()
    outbox.put(_final(1))
    alone = outbox.waiting_bytes
    outbox.put(replace(_final(2), details=_Mood(2, "calm")))
    assert outbox.waiting_bytes == 2 * alone + 5_000
    outbox.close()
    await _read(outbox)
    assert outbox.waiting_bytes == 0


async def test_a_client_that_never_reads_is_given_up():
    """Beyond the limit nothing is held any more, and the reader ends with the error."""
    outbox = Outbox(limit_bytes=10_000)
    for number in range(1_000):
        outbox.put(_final(number, "some words"))
        assert outbox.waiting_bytes <= 10_000 + 1_000
    with raises("slow_reader"):
        await _read(outbox)


async def test_what_waits_goes_out_before_the_error_that_closed_the_box():
    """A final is not lost to the end of the connection."""
    outbox = Outbox()
    outbox.put(_final(1))
    outbox.close(InvalidInput("elsewhere", code="session_taken"))
    outbox.put(_final(2))
    reader = outbox.messages()
    assert (await anext(reader)).message.utterance == 1
    with raises("session_taken"):
        await anext(reader)


async def test_all_finals_that_are_kept_are_given_out_however_long():
    """A client that comes back without any is not taken for one that does not read."""
    outbox = Outbox([_final(number, "word " * 200) for number in range(1, 257)], limit_bytes=10_000)
    outbox.put(_final(257))
    outbox.close()
    assert [message.utterance for message in await _read(outbox)] == list(range(1, 258))


class _Part(SessionPart):
    """Adds its name to every final."""

    def __init__(self, name):
        self._name = name

    def completed(self, outgoing):
        if not isinstance(final := outgoing.message, Final):
            return outgoing
        before = outgoing.details.mood if outgoing.details is not None else ""
        shown = replace(final, text=f"{final.text} {self._name}")
        return replace(outgoing, message=shown, details=_Mood(final.utterance, before + self._name))


async def _sent(connection):
    connection.session.end()
    made = [route.render(outgoing) async for outgoing in connection.messages()]
    return [message for message in made if message is not None]


async def test_a_message_passes_the_parts_in_their_order(make, speech):
    """Each part of a session may change the message and add fields to it."""
    connection = await opened(make(Scripted()), parts=tuple(lambda *_, name=name: _Part(name) for name in "ab"))
    await connection.send(Audio(speech))
    await connection.session.finish()
    final = (await _sent(connection))[-1]
    assert (final["text"], final["mood"]) == ("words a b", "ab")


async def test_newer_details_of_a_final_go_to_who_has_it_and_stay_with_it(make, speech):
    """A client that has the final gets only the details; any other gets both. Only the newest details wait."""
    connection = await opened(make(Scripted()), parts=(lambda *_: SessionPart(),))
    session = connection.session
    await connection.send(Audio(speech))
    await session.finish()
    for mood in ("calm", "glad"):
        session.send(_Mood(1, mood))
    assert (await _sent(connection))[-1] == {"utterance": 1, "mood": "glad"}
    assert await _sent(session.connect(1)) == [{"utterance": 1, "mood": "glad"}]
    (final,) = await _sent(session.connect(0))
    assert (final["text"], final["mood"]) == ("words", "glad")


def test_details_that_say_nothing_are_not_sent_alone():
    """A client that has the final needs nothing more."""
    final = Final(1, "words", "English", 0, 16_000, Ending.PAUSE)
    assert missed(Outgoing(final, details=_Mood(1, "")), 1) is None
