"""One cluster with the demonstration model for all tests that leave it as it was."""

import importlib.util

import pytest

from asr_server.features.translation.conftest import ScriptedLlm
from E2Etest.cluster import process
from tools.clients.openai import rig


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    """Two engine replicas, each with one thread; the settings that the cases of OpenAI's clients need."""
    if importlib.util.find_spec("ray") is None:
        pytest.fail("Ray is not installed: make .venv/.cluster, or pip install ./extras/asr-server-ray")
    with ScriptedLlm() as llm:
        settings = {**rig.SERVERS["main"], "OPENAI_BASE_URL": llm.base_url, "SPEECH": "espeak"}
        with process.running(tmp_path_factory.mktemp("cluster") / "log", **settings) as cluster:
            yield cluster
