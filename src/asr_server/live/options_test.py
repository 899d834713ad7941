"""Parts of live sessions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from asr_server.live import route
from asr_server.live.conftest import Scripted, opened
from asr_server.live.machine.events import Audio, Ending, Final, Partial
from asr_server.live.options import SessionPart
from asr_server.live.outbox import Outgoing, TextDetails, missed


@dataclass(frozen=True, slots=True)
class _Mood(TextDetails):
    utterance: int
    mood: str

    @property
    def is_empty(self):
        return not self.mood

    def fields(self):
        return {"mood": self.mood}

    def wire(self):
        return {"utterance": self.utterance, **self.fields()}


class _Part(SessionPart):
    """Adds its name to every final and drops partials."""

    def __init__(self, name):
        self._name = name

    def shown(self, message):
        match message:
            case Partial():
                return None
            case Final(text=text):
                return replace(message, text=f"{text} {self._name}")
        return message

    def completed(self, outgoing):
        if not isinstance(outgoing.message, Final):
            return outgoing
        before = outgoing.details.mood if outgoing.details is not None else ""
        return replace(outgoing, details=_Mood(outgoing.message.utterance, before + self._name))


async def _sent(connection):
    connection.session.end()
    made = [route.render(outgoing) async for outgoing in connection.messages()]
    return [message for message in made if message is not None]


async def test_a_message_passes_the_parts_in_their_order(make, speech):
    """Each part may change or drop the message, and add to it."""
    connection = await opened(make(Scripted()), parts=tuple(lambda *_, name=name: _Part(name) for name in "ab"))
    await connection.send(Audio(speech))
    await connection.session.finish()
    (final,) = await _sent(connection)
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
