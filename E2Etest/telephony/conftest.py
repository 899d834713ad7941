"""A server, and the bridge in front of it as a process of its own."""

import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from E2Etest.drive.process import ready

WAIT_S = 60


class RunningBridge:
    """The bridge: its ports, its messages as they come, and at the end its log."""

    def __init__(self, process):
        self.process, self.messages, self.log = process, [], []
        first = process.stderr.readline()
        self.port, self.audiosocket_port = map(int, re.findall(r"://127\.0\.0\.1:(\d+)(?: and|,)", first)[:2])
        self._stopped = False
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=read) for read in (self._read_messages, self._read_log)]
        for thread in self._threads:
            thread.start()

    def url(self, path):
        """The address of a path of the WebSocket."""
        return f"ws://127.0.0.1:{self.port}/{path}"

    def wait_for(self, condition):
        """The messages, once the condition holds for them."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.messages), WAIT_S), (self.messages, self.log)
            return list(self.messages)

    def wait_for_log(self, code, count=1):
        """Return once so many log lines have this code."""
        with self._changed:
            found = self._changed.wait_for(lambda: sum(f"code={code}" in line for line in self.log) >= count, WAIT_S)
            assert found, self.log

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

    def join(self):
        """Wait for the end of its outputs."""
        for thread in self._threads:
            thread.join()

    def _read_messages(self):
        for line in self.process.stdout:
            with self._changed:
                self.messages.append(json.loads(line))
                self._changed.notify_all()

    def _read_log(self):
        for line in self.process.stderr:
            with self._changed:
                self.log.append(line)
                self._changed.notify_all()


@contextmanager
def bridged(server, *more):
    """`asr-server telephony` on free ports."""
    command = [sys.executable, "-m", "asr_server", "telephony", "--port", "0", "--audiosocket-port", "0"]
    command += ["--server", server, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            bridge = RunningBridge(process)
        except BaseException:
            process.kill()
            raise
        try:
            yield bridge
        finally:
            bridge.stop()
            bridge.join()
        assert process.wait(timeout=60) == 0, bridge.log


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


@pytest.fixture(scope="session")
def english(tmp_path_factory):
    """A server with the small English model."""
    with ready(tmp_path_factory.mktemp("server") / "log", MODEL_ID="moonshine-tiny-en") as server:
        yield server
