"""A server that knows how many live streams it can answer takes no more of them, and goes on with everything else."""

from contextlib import ExitStack

import pytest

from asr_server.engine.fake_script import FakeScript
from E2Etest import recordings
from E2Etest.exposition import scrape, value
from E2Etest.live.session import act, data, finals, open_session, takes_a_session, upto_flush

pytestmark = pytest.mark.websocket

# A partial is due after 32 ms of speech, and takes much longer.
SLOW = FakeScript(step_s=0.05)
OFTEN = {"WS_BUFFER_SIZE": "1024", "IDLE_TIMEOUT": "0"}


def _speak(sessions, speech):
    """All at once; the text of each."""
    for session in sessions:
        session.send(data(speech))
        act(session, "flush")
    return [" ".join(text for text, *_ in finals(upto_flush(session))) for session in sessions]


@pytest.mark.nightly
def test_another_session_is_refused_while_no_stream_is_free(start, speech, talk, said):
    """With the code and the close of an overload. Open sessions, recordings and `/readyz` go on, and when sessions have
    ended the next one is taken."""
    with start(script=SLOW, **OFTEN, LIVE_ADMISSION="true") as server, ExitStack() as others:
        kept = others.enter_context(open_session(server))
        assert server.health()["capacity"]["streams_measured"] is False
        with ExitStack() as opened:
            sessions = [kept, *(opened.enter_context(open_session(server)) for _ in range(3))]
            _speak(sessions, talk)
            capacity = server.wait_for(lambda health: health["capacity"]["streams_measured"])["capacity"]
            assert (capacity["streams"], capacity["free_streams"]) == (2, 0)
            assert value(scrape(server), "asr_free_streams") == 0
            assert not takes_a_session(server)
            assert server.client.get("/readyz").status_code == 200
            assert server.transcribe(recordings.sample()[0]).json()["text"] == said
            assert _speak([kept], speech) == [said]
        server.wait_for(lambda health: health["capacity"]["free_streams"] == 1)
        assert takes_a_session(server)


@pytest.mark.nightly
def test_an_operator_may_take_more(start, talk):
    """With LIVE_ADMISSION=false the number is shown, and refuses nobody."""
    with start(script=SLOW, **OFTEN, LIVE_ADMISSION="false") as server, ExitStack() as opened:
        _speak([opened.enter_context(open_session(server)) for _ in range(4)], talk)
        server.wait_for(lambda health: health["capacity"]["streams_measured"])
        assert server.health()["capacity"]["free_streams"] == 0
        assert takes_a_session(server)
