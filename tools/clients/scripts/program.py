"""A server program that a script starts: found by a request, and ended. Needs nothing but Python."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

START_TIMEOUT_S = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Sequence[str], url: str, **environment: str) -> Iterator[None]:
    """While `command` runs, from when it answers requests for `url`, or takes connections where that is `tcp://`."""
    process = subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, **environment})
    try:
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"{command[0]} does not answer: {url}")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    address = urlsplit(url)
    try:
        if address.scheme == "tcp":
            socket.create_connection((address.hostname, address.port), timeout=10).close()
            return True
        with urllib.request.urlopen(url, timeout=10):
            return True
    except (OSError, urllib.error.HTTPError):
        return False
