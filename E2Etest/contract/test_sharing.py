"""Shared live sessions: who has a link reads what is committed, and nobody else does."""

from itertools import pairwise

import pytest

from E2Etest.drive.session import open_session
from E2Etest.live.readers import reader, say, share, until

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]


@pytest.mark.slow("sends audio at the pace of speech")
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
