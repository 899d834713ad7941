"""`asr-server demo` in an environment that is set up for something else."""

import os
import socket
import subprocess
import sys

import pytest

from asr_server.cli.conftest import tls

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_the_demonstration_asks_its_own_server_whatever_the_environment_says(tmp_path):
    """A proxy for the world outside, a certificate for another name, keys: none of them is in its way."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    settings = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "API_KEYS": "of-a-server"}
    environment = {**os.environ, **settings, **tls(tmp_path), "STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, "-m", "asr_server", "demo", "--once", "--port", port]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "The words are right." in done.stdout
