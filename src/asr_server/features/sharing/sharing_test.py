"""Links of sessions, and what a session gives its readers."""

import asyncio
from contextlib import ExitStack

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import Overloaded
from asr_server.features.sharing import sharing as module
from asr_server.features.sharing.captions import EndReason
from asr_server.features.sharing.sharing import SharedPart, Sharing
from asr_server.live.machine.events import Ending, Final, Partial, ResetDone
from asr_server.live.outbox import Outgoing


def shared():
    """A session with a link."""
    sharing = Sharing()
    part = SharedPart("live_1", "me", sharing)
    return sharing, part, sharing.share("live_1", "me", 60)


def partial(committed, tentative="", utterance=1):
    """The open utterance."""
    return Outgoing(Partial(utterance, committed, tentative, "English", 16_000, 32_000))


def final(text, utterance=1):
    """The end of an utterance."""
    return Outgoing(Final(utterance, text, "English", 16_000, 32_000, Ending.PAUSE))


def texts(part):
    """The texts that a reader of all gets now."""
    return [caption.text for caption in part.captions.after(0)]


async def test_readers_get_committed_words_alone_and_each_once():
    """A tentative word is in no caption, and what commits no more makes none."""
    _, part, _ = shared()
    for outgoing in (partial("", "turn"), partial("turn", " of"), partial("turn", " on"), partial("turn on")):
        assert part.completed(outgoing) is outgoing
    assert (texts(part), part.captions.newest) == (["turn on"], 2)


async def test_the_same_word_in_the_next_utterance_is_another_caption():
    """Utterances are told apart by their numbers."""
    _, part, _ = shared()
    part.completed(partial("yes", utterance=1))
    part.completed(partial("yes", utterance=2))
    assert part.captions.newest == 2


async def test_words_that_a_reset_takes_from_the_speaker_stay_with_the_readers():
    """Readers keep the words that they have seen as a final; without words there is none."""
    _, part, _ = shared()
    part.completed(Outgoing(ResetDone(None)))
    part.completed(partial("turn on", " the"))
    part.completed(Outgoing(ResetDone(1)))
    assert [(one.text, one.is_final) for one in part.captions.after(0)] == [("turn on", True)]


async def test_a_session_that_ends_ends_its_links_and_is_forgotten(monkeypatch):
    """Its part may be closed more than once, and leaves a newer session of the same id alone."""
    monkeypatch.setattr(module, "_KEPT_AFTER_END_S", 0.01)
    sharing, part, token = shared()
    with sharing.reading(token, 0) as reader:
        newer = SharedPart("live_1", "me", sharing)
        part.close()
        part.close()
        assert reader.end_reason is EndReason.SESSION
    assert sharing.sessions == {"live_1": newer}
    await asyncio.sleep(0.02)
    with raises("session_not_found"):
        sharing.link(token)
    newer.close()
    assert sharing.sessions == {}


async def test_the_last_texts_can_be_read_for_some_time_after_the_session():
    """A reader that comes then is told that the session has ended."""
    sharing, part, token = shared()
    part.completed(final("turn on."))
    part.close()
    with sharing.reading(token, 0) as reader:
        assert [caption.text async for caption in reader.captions()] == ["turn on."]
        assert reader.end_reason is EndReason.SESSION


async def test_links_of_ended_sessions_are_bounded(monkeypatch):
    """The oldest are forgotten first."""
    monkeypatch.setattr(module, "_MAX_ENDED_LINKS", 1)
    sharing, part, token = shared()
    last = sharing.share("live_1", "me", 60)
    part.close()
    with raises("session_not_found"):
        sharing.link(token)
    assert sharing.link(last).is_ended


async def test_a_link_expires_by_itself_and_a_revoked_one_leaves_no_timer():
    """A timer that is left would close what is no longer there."""
    sharing, part, token = shared()
    short = sharing.share("live_1", "me", 0.01)
    sharing.revoke("live_1", "me", sharing.share("live_1", "me", 0.01))
    with sharing.reading(short, 0) as reader:
        assert [caption async for caption in reader.captions()] == []
        assert reader.end_reason is EndReason.EXPIRED
    await asyncio.sleep(0.02)
    assert len(part.links) == 1
    assert sharing.link(token).captions is part.captions


@pytest.mark.parametrize("bound", ["_MAX_READERS_OF_SESSION", "_MAX_READERS"])
async def test_readers_are_bounded_and_who_leaves_makes_room(monkeypatch, bound):
    """The number of readers is limited for each session and for the server."""
    monkeypatch.setattr(module, bound, 1)
    sharing, _, token = shared()
    for _ in range(2):
        with sharing.reading(token, 0), pytest.raises(Overloaded), sharing.reading(token, 0):
            pass


async def test_the_readers_of_one_key_leave_room_for_those_of_another(monkeypatch):
    """The sessions of a key share its places: half of all that are free."""
    monkeypatch.setattr(module, "_MAX_READERS", 8)
    sharing = Sharing()
    tokens = []
    for name, owner in (("live_1", "me"), ("live_2", "me"), ("live_3", "you")):
        SharedPart(name, owner, sharing)
        tokens.append(sharing.share(name, owner, 60))
    with ExitStack() as readers:
        for token in tokens[:2]:
            for _ in range(2):
                readers.enter_context(sharing.reading(token, 0))
        with pytest.raises(Overloaded), sharing.reading(tokens[0], 0):
            pass
        readers.enter_context(sharing.reading(tokens[2], 0))
        readers.enter_context(sharing.reading(tokens[2], 0))
