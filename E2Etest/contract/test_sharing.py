"""Shared live sessions: who has a link reads what is committed, and nobody else does."""

import time
from itertools import pairwise

import pytest

from asr_server.subtitle.files import parse_vtt
from E2Etest.drive.session import open_session, upto_flush
from E2Etest.live.readers import error, reader, say, share, until

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]

_OTHER_KEY = {"Authorization": "Bearer sk-canary-second"}


def test_a_reader_without_a_key_sees_the_words_and_none_is_taken_back(guarded, speech):
    """Each text of an utterance begins with the one before, the last is the speaker's final, and the end is told."""
    with open_session(guarded) as socket:
        link = share(guarded, socket)
        with reader(guarded, link) as found:
            assert next(found) == {"type": "begin", "complete": True}
            said = say(socket, speech, pace_s=0.02)  # slowly enough for texts before the final
            seen = until(found, "final")
            socket.close()
            (end,) = until(found, "end")
            assert list(found) == []
    texts = [event["text"] for event in seen]
    assert texts[-1] == said
    assert len(texts) > 1
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert [event["id"] for event in seen] == sorted({event["id"] for event in seen})
    assert end == {"type": "end", "reason": "session"}


def test_a_reader_who_is_late_or_comes_back_gets_what_is_kept(live_server, speech):
    """A reader gets all from the first final after the link was made, or after the event that it has."""
    with open_session(live_server) as socket:
        say(socket, speech)
        link = share(live_server, socket)
        texts = [say(socket, speech), say(socket, speech)]
        with reader(live_server, link) as found:
            next(found)
            finals = [next(found), next(found)]
        assert [event["text"] for event in finals] == texts
        with reader(live_server, link, **{"Last-Event-ID": str(finals[0]["id"])}) as found:
            next(found)
            assert next(found) == finals[1]


def test_a_link_that_is_revoked_ends_its_readers_and_no_others(live_server, speech):
    """The link is not found any more, for the page, for the cues and for a second revocation."""
    with open_session(live_server) as socket:
        revoked, kept = share(live_server, socket), share(live_server, socket)
        address = f"/v1/live/{socket.hello['session_id']}/share/{revoked['token']}"
        with reader(live_server, revoked) as found, reader(live_server, kept) as others:
            next(found)
            assert live_server.client.delete(address).status_code == 204
            assert list(found) == [{"type": "end", "reason": "revoked"}]
            said = say(socket, speech)
            assert until(others, "final")[-1]["text"] == said
        with reader(live_server, revoked) as code:
            assert code == "session_not_found"
        assert live_server.client.get(revoked["captions"]).status_code == 404
        assert live_server.client.delete(address).status_code == 404


def test_a_link_ends_at_its_expiry(live_server):
    """The readers of the link are told that it has expired."""
    with open_session(live_server) as socket:
        link = share(live_server, socket, expires_s=1)
        assert link["expires_at"] <= time.time() + 2
        with reader(live_server, link) as found:
            assert until(found, "end")[-1]["reason"] == "expired"
        with reader(live_server, link) as code:
            assert code == "session_not_found"


def test_only_the_owner_makes_and_revokes_links(guarded):
    """A key of somebody else is told that there is no such session, and no key that one is needed."""
    with open_session(guarded) as socket:
        link = share(guarded, socket)
        address = f"/v1/live/{socket.hello['session_id']}/share"
        for headers, code in ((_OTHER_KEY, "session_not_found"), ({"Authorization": ""}, "missing_api_key")):
            assert error(guarded.client.post(address, headers=headers)) == code
            assert error(guarded.client.delete(f"{address}/{link['token']}", headers=headers)) == code
        with reader(guarded, link) as found:
            assert next(found)["type"] == "begin"


def test_a_session_has_a_bounded_number_of_links(live_server):
    """One more is refused until one is revoked."""
    with open_session(live_server) as socket:
        links = [share(live_server, socket) for _ in range(16)]
        address = f"/v1/live/{socket.hello['session_id']}/share"
        assert error(live_server.client.post(address)) == "rate_limit_exceeded"
        live_server.client.delete(f"{address}/{links[0]['token']}")
        share(live_server, socket)


@pytest.mark.parametrize("body", [{"expires_s": 0}, {"expires_s": 86_401}, {"expires_s": "1"}])
def test_a_time_that_no_link_can_have_is_refused(live_server, body):
    """The error names the field."""
    with open_session(live_server) as socket:
        answer = live_server.client.post(f"/v1/live/{socket.hello['session_id']}/share", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "expires_s")


def test_an_id_of_an_event_that_is_none_is_refused(live_server):
    """An id that is no number of digits is refused."""
    with (
        open_session(live_server) as socket,
        reader(live_server, share(live_server, socket), **{"Last-Event-ID": "1e3"}) as code,
    ):
        assert code == "invalid_value"


def test_the_finals_so_far_are_cues(live_server, speech):
    """The file is WebVTT and has the words of the finals in order, each cue within its utterance."""
    with open_session(live_server) as socket:
        link = share(live_server, socket)
        said = [say(socket, speech), say(socket, speech)]
        answer = live_server.client.get(link["captions"])
    assert answer.headers["content-type"] == "text/vtt; charset=utf-8"
    cues = parse_vtt(answer.text)
    assert " ".join(cue.text for cue in cues).split() == " ".join(said).split()
    assert all(one.end_ms <= other.start_ms for one, other in pairwise(cues))


def test_a_session_that_is_resumed_keeps_its_link(live_server, speech):
    """Readers of a session that was resumed get each final once."""
    with open_session(live_server) as socket:
        link = share(live_server, socket)
        first = say(socket, speech)
    identity = socket.hello["session_id"]
    with reader(live_server, link) as found, open_session(live_server, session_id=identity, received=0) as socket:
        upto_flush(socket)  # the final of before, once more for the speaker alone
        second = say(socket, speech)
        seen = [event for event in until(found, "final")[1:] + until(found, "final") if event["type"] == "final"]
        assert [event["text"] for event in seen] == [first, second]
        assert seen[0]["utterance"] < seen[1]["utterance"]


def test_the_token_is_in_no_line_of_the_log(guarded):
    """The id of the session, with which it could be resumed, is not logged either."""
    with open_session(guarded) as socket:
        link = share(guarded, socket)
        with reader(guarded, link) as found:
            next(found)
        guarded.client.get(link["captions"])
        guarded.client.delete(f"/v1/live/{socket.hello['session_id']}/share/{link['token']}")
    assert "/v1/live/shared/{token}/captions.vtt" in guarded.log()
    assert link["token"] not in guarded.log()
    assert socket.hello["session_id"] not in guarded.log()
