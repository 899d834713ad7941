"""A party over servers that come and go, on scripted servers."""

import threading

from asr_server.client.conftest import servers, text
from asr_server.client.live import LiveOptions
from asr_server_telephony import party_session
from asr_server_telephony.party_session import PartySession, SessionTarget

_HZ = 8_000


def _seconds(seconds):
    return bytes(int(seconds * _HZ) * 2)


class _Told(list):
    """The messages so far. `has_lost` is set once audio is lost."""

    def __init__(self):
        super().__init__()
        self.has_lost = threading.Event()

    def __call__(self, message):
        self.append(message)
        if message["type"] == "audio_lost":
            self.has_lost.set()


def _session(url, told):
    return PartySession(SessionTarget(url, LiveOptions()), "caller", _HZ, told)


def test_a_session_that_cannot_go_on_is_followed_by_another(monkeypatch):
    """The audio between them is reported as lost. Times and utterances count from the beginning of the call."""
    monkeypatch.setattr(party_session, "_RESUME_WITHIN_S", 0.0)

    def first(side):
        side.hello()
        side.hear(32_000)
        side.say(text(1, "turn on", end=1.5, ending="pause"))
        side.break_off()

    def second(side):
        assert "session_id" not in side.path
        side.hello()
        side.hear(16_000, 1)
        side.say(text(1, "the light", end=0.5, ending="flush"))
        side.end()

    told = _Told()
    with servers(first, lambda side: side.refuse("overloaded"), second) as url:
        session = _session(url, told)
        session.push(_seconds(2))
        assert told.has_lost.wait(20)
        session.push(_seconds(1))
        session.finish()
        session.wait(20)
    assert [each["type"] for each in told] == ["text", "audio_lost", "text"]
    assert (told[1]["start"], told[1]["end"]) == (1.5, 2.0)
    assert (told[2]["utterance"], told[2]["end"]) == (2, 2.5)


def test_audio_that_waits_is_bounded(monkeypatch):
    """The oldest is dropped, and told as lost once a session begins."""
    monkeypatch.setattr(party_session, "_WAITING_S", 1)
    heard = threading.Event()

    def only(side):
        heard.wait(20)
        side.hello()
        side.hear(16_000, 1)
        side.say(text(1, "late", end=0.5, ending="flush"))
        side.end()

    told = _Told()
    with servers(only) as url:
        session = _session(url, told)
        for _ in range(30):
            session.push(_seconds(0.1))
        heard.set()
        session.finish()
        session.wait(20)
    assert [each["type"] for each in told] == ["audio_lost", "text"]
    assert (told[0]["start"], told[0]["end"]) == (0.0, 2.0)
    assert told[1]["end"] == 2.5


def test_a_server_that_does_not_answer_is_left():
    """After the time for the last words, they are told as lost."""

    def silent(side):
        side.hello()
        side.end()

    told = _Told()
    with servers(silent) as url:
        session = _session(url, told)
        session.push(_seconds(1))
        session.finish()
        session.wait(0.5)
    assert [(each["type"], each["end"]) for each in told] == [("audio_lost", 1.0)]
