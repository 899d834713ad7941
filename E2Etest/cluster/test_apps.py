"""Several apps, of which some are stopped in order under load."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest import recordings
from E2Etest.cluster import process
from E2Etest.contract.test_jobs import long_recording
from E2Etest.live.moving import MovingClient
from E2Etest.live.session import data
from E2Etest.process import ServerProcess, fake_model
from E2Etest.replicas.load import calling
from E2Etest.replicas.test_live import Speaker, check

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1_800)]

SPEAKERS = 4
_DEPLOY_S = 600.0
_FOR_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_worker_niceness": "0",
    "RAY_DEDUP_LOGS": "0",  # lines are counted
    # On a machine that is busy with other tests.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_raylet_start_wait_time_s": "300",
}


class Deployed(ServerProcess):
    """What `serve deploy` makes of a config. Use `deployed()`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._config = folder / "serve.json"
        self._config.write_text(json.dumps(_config(apps=2)))
        program = (str(Path(__file__).parent / "deploy.py"), str(self._config))
        super().__init__(
            folder / "log", program=program, **{"SPEECH": "off", "SPEAKERS": "off", **_FOR_RAY, **settings}
        )

    def deploy(self, **changes: object) -> None:
        """Deploy the changed config, and wait until only that runs."""
        self._config.write_text(json.dumps(_config(**changes)))
        before = self._deployments
        self.process.send_signal(signal.SIGHUP)
        self.wait_until_deployed(before + 1)

    def wait_until_deployed(self, number: int = 1) -> None:
        """Until so many configs were deployed."""
        give_up_s = time.monotonic() + _DEPLOY_S
        while self._deployments < number:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < give_up_s, self.log()
            time.sleep(0.2)

    @property
    def _deployments(self) -> int:
        return self.log().count("\ndeployed {")


def _config(apps: int = 2, cpus: float = 1.0) -> dict:
    """With other `apps` only their number changes; with other `cpus` all replicas are replaced."""
    application = {
        "name": "asr-server",
        "import_path": "asr_server_ray.application:build",
        "route_prefix": "/",
        "args": {"replicas": 2, "apps": 2, "cpus": cpus},
        "deployments": [{"name": "app", "num_replicas": apps}],
    }
    return {"applications": [application]}


@contextmanager
def deployed(folder, **settings):
    """Two apps and two engine replicas; stopped at the end."""
    cluster = Deployed(folder, **settings)
    try:
        cluster.wait_until_deployed()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def speaking(server):
    """Sessions that go on until the block ends; afterwards each has all words once."""
    speakers = [Speaker(server) for _ in range(SPEAKERS)]
    try:
        yield
    finally:
        for speaker in speakers:
            speaker.end()
    check(speakers)
    # None was cut off: those whose app went were asked to go before.
    assert [speaker.resumed for speaker in speakers] == [0] * SPEAKERS


def _moved(server):
    return server.log().count("outcome=moved")


def test_live_sessions_leave_an_app_before_it_is_removed(tmp_path):
    """They go on at the other one with every word once."""
    with deployed(tmp_path, MODEL_ID="demo") as cluster, speaking(cluster):
        time.sleep(5)
        cluster.deploy(apps=1)
        assert cluster.log().count("the app is stopped") == 1
        assert 0 < _moved(cluster) < SPEAKERS
        time.sleep(3)


def test_the_command_ends_in_order(tmp_path, talk):
    """SIGTERM: a session is asked to go on elsewhere, and gets its last words here; an upload is answered."""
    with process.running(tmp_path / "log", MODEL_ID="demo", HANDOVER_S="2") as cluster, ThreadPoolExecutor(1) as pool:
        client = MovingClient(cluster)
        client.send(data(talk))
        client.read_until(lambda: client.messages[-1].get("committed"))
        upload = pool.submit(cluster.transcribe, long_recording(10))
        cluster.wait_for(lambda health: health["queue"]["running"] > 0)
        cluster.process.send_signal(signal.SIGTERM)
        client.read_until(lambda: client.reconnect)
        with pytest.raises(ConnectionClosed) as closed:
            client.read(_DEPLOY_S)
        assert closed.value.rcvd.code == 1001
        assert client.finals[max(client.finals)]["is_final"]
        client.check_nothing_was_taken_back()
        assert upload.result().status_code == 200
        assert cluster.process.wait(_DEPLOY_S) == 0


def test_a_rolling_update_fails_no_request(tmp_path):
    """All apps and engine replicas are replaced one after the other while callers of every kind work."""
    script = fake_model(tmp_path, text=recordings.sample()[1], language="English")
    translator = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "TRANSLATE_MODEL": "nobody", "SPEECH": "espeak"}
    with deployed(tmp_path, **script, **translator) as cluster:
        with calling(cluster, recordings.sample()[1]) as callers:
            callers.wait_for_each_kind(1)
            cluster.deploy(cpus=0.9)
            callers.wait_for_each_kind(1)
        assert cluster.log().count("app='asr-server') is stopped") == 4
    assert callers.tally.wrong == []
    assert callers.tally.broken == []
