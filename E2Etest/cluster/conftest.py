"""The application of docs/run/cluster/local.yaml, deployed on this machine."""

import importlib.util
import signal
from pathlib import Path

import pytest
import yaml

from E2Etest.drive import recordings
from E2Etest.drive.process import ServerProcess, fake_model, until

_LOCAL = Path(__file__).parents[2] / "docs" / "run" / "cluster" / "local.yaml"
_DEPLOY_S = 600.0
_FOR_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # lines are counted
    # On a machine that is busy with other tests.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_raylet_start_wait_time_s": "300",
}


class Cluster(ServerProcess):
    """Ray with two servers."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._config = folder / "serve.yaml"
        self._config.write_bytes(_LOCAL.read_bytes())
        program = (str(Path(__file__).parent / "deploy.py"), str(self._config))
        super().__init__(folder / "log", program=program, **{"SPEAKERS": "off", **_FOR_RAY, **settings})

    def replace_all(self) -> None:
        """Deploy the application with other options, which replaces all servers, and wait until only new ones run."""
        config = yaml.safe_load(self._config.read_text(encoding="utf-8"))
        config["applications"][0]["deployments"][0]["ray_actor_options"] = {"num_cpus": 0.9}
        self._config.write_text(yaml.safe_dump(config), encoding="utf-8")
        before = self.log().count("deployed {")
        self.process.send_signal(signal.SIGHUP)
        self.wait_until_deployed(before + 1)

    def wait_until_deployed(self, number: int = 1) -> None:
        """Wait until this many configs were deployed."""
        until(lambda: self.log().count("deployed {") >= number, _DEPLOY_S, self.log)


@pytest.fixture
def cluster(tmp_path):
    """Two servers with the fake engine, which loads in no time and hears the words of the bundled recording."""
    if importlib.util.find_spec("ray") is None:
        pytest.fail("Ray is not installed: make .venv/.cluster, or pip install ./extras/asr-server-ray")
    script = fake_model(tmp_path, text=recordings.sample()[1], language="English")
    translator = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "TRANSLATE_MODEL": "nobody"}
    found = Cluster(tmp_path, **script, **translator)
    try:
        found.wait_until_deployed()
        yield found
    finally:
        found.stop()
