"""Links of sessions, and what a session gives its readers."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import Overloaded
from asr_server.features.sharing import sharing as module
from asr_server.features.sharing.captions import EndReason
from asr_server.features.sharing.sharing import Sharing
from asr_server.live.machine.events import Ending, Final, Partial, ResetDone
from asr_server.live.outbox import Outgoing


def shared():
    """A session with a link, and its part."""
    sharing, session = Sharing(), SimpleNamespace(id="live_1", parts=[])
    token = sharing.share(session, "me", 60)
    (part,) = session.parts
    return sharing, session, part, token


def partial(committed, tentative="", utterance=1):
    """The open utterance."""
    return Outgoing(Partial(utterance, committed, tentative, "English", 16_000, 32_000))


async def test_readers_get_committed_words_alone_and_each_once():
    """A tentative word is in no caption, and what commits no more makes none. Utterances are told apart."""
    *_, part, _ = shared()
    for outgoing in (partial("", "turn"), partial("turn", " of"), partial("turn", " on"), partial("turn on")):
        assert part.completed(outgoing) is outgoing
    assert ([caption.text for caption in part.captions.after(0)], part.captions.newest) == (["turn on"], 2)
    part.completed(partial("turn on", utterance=2))
    assert part.captions.newest == 3


async def test_words_that_a_reset_takes_from_the_speaker_stay_with_the_readers():
    """Readers keep the words that they have seen as a final; without words there is none."""
    *_, part, _ = shared()
    part.completed(Outgoing(ResetDone(None)))
    part.completed(partial("turn on", " the"))
    part.completed(Outgoing(ResetDone(1)))
    assert [(one.text, one.is_final) for one in part.captions.after(0)] == [("turn on", True)]


@pytest.mark.parametrize("discarded", [None, 2])
async def test_a_reset_leaves_an_ended_utterance_to_its_final(discarded):
    """Or readers would have its words twice."""
    *_, part, _ = shared()
    part.completed(partial("turn on", " the"))
    part.completed(Outgoing(ResetDone(discarded)))
    part.completed(Outgoing(Final(1, "turn on the lights.", "English", 16_000, 32_000, Ending.PAUSE)))
    assert [(one.text, one.is_final) for one in part.captions.after(0)] == [("turn on the lights.", True)]


async def test_the_last_texts_can_be_read_for_some_time_after_the_session(monkeypatch):
    """Every reader gets the end of the session. Its part may be closed more than once."""
    monkeypatch.setattr(module, "_KEPT_AFTER_END_S", 0.01)
    sharing, _, part, token = shared()
    part.completed(Outgoing(Final(1, "turn on.", "English", 16_000, 32_000, Ending.PAUSE)))
    with sharing.reading(token, 0) as before:
        part.close()
        part.close()
        with sharing.reading(token, 0) as after:
            for reader in (before, after):
                assert [caption.text async for caption in reader.captions()] == ["turn on."]
                assert reader.end_reason is EndReason.SESSION
    await asyncio.sleep(0.02)
    with raises("session_not_found"):
        sharing.link(token)


async def test_links_of_ended_sessions_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MAX_ENDED_LINKS", 1)
    sharing, session, part, token = shared()
    last = sharing.share(session, "me", 60)
    part.close()
    with raises("session_not_found"):
        sharing.link(token)
    assert sharing.link(last).is_ended


@pytest.mark.parametrize("bound", ["_MAX_READERS_OF_SESSION", "_MAX_READERS"])
async def test_readers_are_bounded_and_who_leaves_makes_room(monkeypatch, bound):
    monkeypatch.setattr(module, bound, 1)
    sharing, *_, token = shared()
    for _ in range(2):
        with sharing.reading(token, 0), pytest.raises(Overloaded), sharing.reading(token, 0):
            pass


async def test_the_readers_of_one_key_leave_room_for_those_of_another(monkeypatch):
    """The sessions of a key share its places: half of all that are free."""
    monkeypatch.setattr(module, "_MAX_READERS", 8)
    sharing = Sharing()
    mine, also_mine, other = (
        sharing.share(SimpleNamespace(id="live_1", parts=[]), owner, 60) for owner in ("me", "me", "you")
    )
    with ExitStack() as readers:
        for token in (mine, mine, also_mine, also_mine):
            readers.enter_context(sharing.reading(token, 0))
        with pytest.raises(Overloaded), sharing.reading(mine, 0):
            pass
        for _ in range(2):
            readers.enter_context(sharing.reading(other, 0))
