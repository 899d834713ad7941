"""Servers and an engine that are replaced, killed or disconnected under load."""

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.session import act, data, finals, open_session, upto_flush
from E2Etest.replicas.load import Callers
from E2Etest.replicas.rig import balanced


def test_no_answer_looks_complete_that_is_not(tmp_path, scripted):
    """A server is killed under callers of every kind. The requests that it had accepted fail visibly, and all others
    are answered by the other server and by its successor."""
    with balanced(tmp_path, 2, **scripted) as replicas:
        with Callers(replicas, recordings.sample()[1]) as callers:
            callers.wait_for_each_kind(1)
            replicas.kill(next(iter(replicas.servers)))
            callers.wait_for_each_kind(2)
            replicas.start()
            broken = len(callers.tally.broken)
            callers.wait_for_each_kind(2)
            assert len(callers.tally.broken) == broken
        assert callers.tally.wrong == []


def test_a_rolling_update_fails_no_request(tmp_path, scripted):
    """The engine and two servers are replaced under callers of every kind. Each request gets its whole answer at the
    first attempt. Each live session gets all its words, or a final and close code 1001 if its server stops."""
    with balanced(tmp_path, 2, **scripted) as replicas:
        with Callers(replicas, recordings.sample()[1]) as callers:
            callers.wait_for_each_kind(2)
            assert replicas.stop_engine() == 0
            replicas.start_engine()
            callers.wait_for_each_kind(1)
            assert replicas.roll() == [0, 0]
            callers.wait_for_each_kind(2)
        assert callers.tally.wrong == []
        assert callers.tally.broken == []
        assert all(replicas.answered()[place] for place in replicas.servers)
        assert "Traceback" not in replicas.log()


@pytest.mark.websocket
def test_a_live_session_that_loses_its_connection_resumes_at_its_server(tmp_path, scripted):
    """A proxy that ignores the id in the URL would send some of six sessions to the other server. A link to a session
    leads to its server too."""
    speech = data(np.concatenate([recordings.samples(), np.zeros(16_000, np.int16)]))
    names = set()
    with balanced(tmp_path, 2, **scripted) as replicas:
        for _ in range(6):
            with open_session(replicas) as broken:
                identity = broken.hello["session_id"]
                broken.send(speech[: len(speech) // 2])
                link = replicas.client.post(f"/v1/live/{identity}/share", json={}).json()
                assert replicas.client.get(link["captions"]).status_code == 200
                broken.socket.close()
            with open_session(replicas, session_id=identity, received=0) as socket:
                assert socket.hello["session_id"] == identity
                socket.send(speech[socket.hello["received_bytes"] :])
                act(socket, "flush")
                assert [text for text, *_ in finals(upto_flush(socket))] == [recordings.sample()[1]]
            names.add(identity.partition("_")[0])
    assert names == {"asr1", "asr2"}
