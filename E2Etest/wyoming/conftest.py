"""A server, and the bridge in front of it as a process of its own."""

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest


@contextmanager
def bridged(server, *more, log=None):
    """`asr-server wyoming` on a free port; yields its port. Its log lines go into the list `log`, or must be none."""
    command = [sys.executable, "-m", "asr_server", "wyoming", "--port", "0", "--server", server, *more]
    command += ["--log-level", "info" if log is not None else "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield int(re.search(r"tcp://127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
        finally:
            process.terminate()
            _, written = process.communicate(timeout=30)
            assert process.returncode == 0
            if log is None:
                assert written == ""
            else:
                log += written.splitlines()


@pytest.fixture(scope="session")
def wyoming_server(start):
    """A server with the fake engine."""
    with start() as server:
        yield server


@pytest.fixture(scope="session")
def port(wyoming_server):
    """The port on which the bridge in front of the server listens."""
    with bridged(wyoming_server.base) as found:
        yield found
