"""A server, and the bridge in front of it as a process of its own."""

import json
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from E2Etest.drive.process import until


class RunningBridge:
    """The bridge: its ports, and what it has written so far."""

    def __init__(self, process, messages, log):
        self.process, self._messages, self._log, self._stopped = process, messages, log, False
        first = until(lambda: self.log)[0]
        self.port, self.audiosocket_port = map(int, re.findall(r"://127\.0\.0\.1:(\d+)(?: and|,)", first)[:2])

    @property
    def messages(self):
        return list(map(json.loads, _lines(self._messages)))

    @property
    def log(self):
        return _lines(self._log)

    def url(self, path):
        """The address of a path of the WebSocket."""
        return f"ws://127.0.0.1:{self.port}/{path}"

    def wait_for(self, condition):
        """The messages, once the condition holds for them."""
        return until(lambda: condition(found := self.messages) and found, state=lambda: (self.messages, self.log))

    def wait_for_log(self, code, count=1):
        """Return once so many log lines have this code."""
        until(lambda: sum(f"code={code}" in line for line in self.log) >= count, state=lambda: self.log)

    def call(self, name):
        """All messages of a call that has ended."""

        def ended(messages):
            return any(m["call"] == name and m["type"] == "call_ended" for m in messages)

        return [message for message in self.wait_for(ended) if message["call"] == name]

    def stop(self):
        """Ask it to end, once: a second signal may come when it has left its handler."""
        if not self._stopped:
            self._stopped = True
            self.process.terminate()


def _lines(path):
    """The whole lines of a file that another process writes."""
    return path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()


@contextmanager
def bridged(server, *more):
    """`asr-server telephony` on free ports."""
    command = [sys.executable, "-m", "asr_server", "telephony", "--port", "0", "--audiosocket-port", "0"]
    command += ["--server", server, *more]
    with tempfile.TemporaryDirectory() as folder:
        messages, log = Path(folder, "messages"), Path(folder, "log")
        with (
            messages.open("w") as out,
            log.open("w") as err,
            subprocess.Popen(command, stdout=out, stderr=err) as process,
        ):
            try:
                bridge = RunningBridge(process, messages, log)
                yield bridge
                bridge.stop()
                assert process.wait(timeout=60) == 0, bridge.log
            finally:
                process.kill()


@pytest.fixture(scope="session")
def fake_server(start):
    """A server with the fake engine, which hears the words of the bundled recording in any sound."""
    with start() as server:
        yield server


@pytest.fixture(scope="module")
def bridge(fake_server):
    """A bridge in front of that server."""
    with bridged(fake_server.base) as found:
        yield found
