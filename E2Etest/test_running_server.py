"""The suite against a server that runs already, and what needs a GPU."""

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from E2Etest.drive.process import RunningServer, ready

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_tests_run_against_the_server_that_is_named(start):
    """With its key; tests that start servers of their own are skipped, and say why."""
    tests = ["E2Etest/test_surfaces.py::test_a_live_session", "E2Etest/test_jobs.py", "E2Etest/test_smoke.py"]
    with start(API_KEYS="sk-first") as server:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:schemathesis", "-rs", *tests],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "E2E_BASE_URL": server.base, "E2E_API_KEY": server.key},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\.s+ ", done.stdout, re.MULTILINE), done.stdout
    assert "starts its own server, and E2E_BASE_URL names one that runs" in done.stdout


def test_the_live_socket_may_be_elsewhere(start, monkeypatch):
    """At E2E_WS_URL, as it is; by default at the server itself."""
    with start() as server:
        monkeypatch.setenv("E2E_BASE_URL", f"{server.base}/")
        with closing(RunningServer()) as running:
            assert (running.model, running.live_url) == ("demo", f"ws://127.0.0.1:{server.port}/ws/transcribe")
        monkeypatch.setenv("E2E_WS_URL", "wss://asr.example/ws/transcribe")
        with closing(RunningServer()) as running:
            assert running.live_url == "wss://asr.example/ws/transcribe"


@pytest.mark.requires_gpu
def test_a_gpu_hears_the_words_and_reports_its_memory(tmp_path, sample):
    """In float32 the words are those of a CPU."""
    with ready(tmp_path / "log", DEVICE="cuda", DTYPE="float32") as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        health = server.health()
    assert health["cuda"]
    assert health["gpu_name"]
    assert health["gpu_allocated_mb"] > 0
