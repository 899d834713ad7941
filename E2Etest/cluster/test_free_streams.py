"""A cluster takes as many live sessions as its engine replicas say that they can answer."""

import json
import os
import signal
from contextlib import ExitStack

import pytest

from E2Etest.cluster import process
from E2Etest.exposition import scrape, value
from E2Etest.live.session import act, data, open_session, takes_a_session, upto_flush

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.websocket, pytest.mark.timeout(600)]

_PATIENCE_S = 180.0


def test_sessions_are_refused_while_no_replica_has_a_free_stream(tmp_path, talk):
    """Two fit each replica, which is slow. One that dies takes its streams along, and the next brings them back."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"step_s": 0.05}))
    # A partial is due after 32 ms of speech, and takes much longer.
    settings = {"MODEL_ID": "fake", "FAKE_ENGINE_SCRIPT": str(script), "WS_BUFFER_SIZE": "1024"}
    with process.running(tmp_path / "log", LIVE_ADMISSION="true", **settings) as cluster:
        assert cluster.health()["capacity"]["streams_measured"] is False
        with ExitStack() as opened:
            sessions = [opened.enter_context(open_session(cluster)) for _ in range(4)]
            for session in sessions:
                session.send(data(talk))
                act(session, "flush")
            for session in sessions:
                upto_flush(session)
            capacity = cluster.wait_for(lambda health: health["capacity"]["streams_measured"])["capacity"]
            assert (capacity["streams"], capacity["free_streams"]) == (4, 0)
            assert value(scrape(cluster), "asr_free_streams") == 0
            assert not takes_a_session(cluster)
            os.kill(cluster.processes("engine")[0], signal.SIGKILL)
            cluster.wait_for(lambda health: health["capacity"]["streams"] == 2, _PATIENCE_S)
            cluster.wait_for(lambda health: health["capacity"]["streams"] == 4, _PATIENCE_S)
            assert not takes_a_session(cluster)
        cluster.wait_for(lambda health: health["capacity"]["free_streams"] == 4)
        assert takes_a_session(cluster)
