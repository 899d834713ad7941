"""The server that most tests share."""

import pytest

from E2Etest import recordings
from E2Etest.process import running


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A running server with the demonstration model and small limits."""
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, MAX_UPLOAD_MB="4", MAX_AUDIO_S="120", IDLE_TIMEOUT="600") as server:
        yield server


@pytest.fixture(scope="session")
def guarded(tmp_path_factory):
    """A running server with two keys, the model loaded, that logs all it ever logs."""
    log = tmp_path_factory.mktemp("guarded") / "log"
    keys = {"API_KEYS": "sk-canary-first,sk-canary-second", "OPENAI_API_KEY": "sk-canary-elsewhere"}
    limits = {"MAX_UPLOAD_MB": "4", "MAX_AUDIO_S": "120", "IDLE_TIMEOUT": "0"}
    with running(log, PRELOAD="true", LOG_LEVEL="TRACE", **keys, **limits) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=180)
        yield server


@pytest.fixture(scope="session")
def sample():
    """The bundled recording and its words."""
    return recordings.sample()
