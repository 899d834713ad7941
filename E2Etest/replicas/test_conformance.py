"""What clients see of two servers with the demonstration model behind one address: the same as of one."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from asr_server.engine.fake_script import FakeScript
from asr_server.net import event_stream
from E2Etest.postgres import postgres
from E2Etest.replicas.rig import balanced
from tools.clients.openai import clients, rig

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
# Metrics are of one server.
ELSEWHERE = "not test_tokens_are_counted"


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """Two, with the settings that the cases of OpenAI's clients need, and a database for their jobs."""
    settings = {"MODEL_ID": "demo", "PRELOAD": "true", "IDLE_TIMEOUT": "0", **rig.SERVERS["main"]}
    with postgres() as database:
        settings["JOBS_DATABASE_URL"] = database.url
        with balanced(tmp_path_factory.mktemp("replicas"), 2, **settings) as replicas:
            yield replicas


def test_every_surface_has_the_words(replicas):
    """The tests for any server, pointed at the balanced address; both servers take part."""
    before = replicas.answered()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-k", ELSEWHERE, "E2Etest/test_surfaces.py"],
        cwd=ROOT,
        env={**os.environ, "E2E_BASE_URL": replicas.base},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(after > before[place] for place, after in replicas.answered().items() if place in replicas.servers)


def test_openais_client_sees_what_every_case_says(replicas, start, tmp_path):
    """The newest Python client; the servers that are slow, limited or without a model on purpose stand alone."""
    others = rig.SERVERS | {"absent": {"script": FakeScript(load_failures=1_000), "MODEL_ID": rig.ABSENT}}
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(event_stream, "PING_S", rig.PING_S)
        servers = {name: stack.enter_context(start(**options)) for name, options in others.items() if name != "main"}
        found = clients.run(clients.CLIENTS[0], rig.facts({"main": replicas, **servers}, tmp_path), tmp_path)
    assert {result.case: result.seen for result in found.values() if not result.ok} == {}
    assert set(found) == {case.name for case in clients.cases_of(clients.CLIENTS[0])}
