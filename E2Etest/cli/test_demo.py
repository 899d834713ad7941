"""`asr-server demo` in an environment that is set up for something else."""

import socket

import pytest

from asr_server.cli.conftest import tls
from E2Etest.cli.commands import command

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_the_demonstration_asks_its_own_server_whatever_the_environment_says(tmp_path):
    """A proxy for the world outside, a certificate for another name, keys: none of them is in its way."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "API_KEYS": "of-a-server"}
    settings |= {**tls(tmp_path), "STATE_DIR": str(tmp_path / "state")}
    done = command("demo", "--once", "--port", port, cwd=tmp_path, **settings)
    assert done.returncode == 0, done.stderr
    assert "The words are right." in done.stdout
