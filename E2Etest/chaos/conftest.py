"""A server with the model loaded, for those who need nothing else."""

import pytest

from E2Etest.process import running


@pytest.fixture(scope="session")
def loaded(tmp_path_factory):
    """It keeps the model, and a session as long as its connection."""
    log = tmp_path_factory.mktemp("chaos") / "log"
    with running(log, PRELOAD="true", IDLE_TIMEOUT="0", WS_RESUME_S="0") as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        yield server
