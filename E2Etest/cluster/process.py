"""A cluster on this machine: `asr-server cluster` with two engine replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from E2Etest.process import ServerProcess

# Ray's own processes and three of ours are started, each of which imports what a server does.
_START_S = 300.0
# What the processes of each part are called, from the beginning.
_TITLES = {
    "engine": "ray::ServeReplica:asr-server:engine",
    "app": "ray::ServeReplica:asr-server:app",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
}


class ClusterProcess(ServerProcess):
    """Use `running()`."""

    def __init__(self, log: Path, *arguments: str, **settings: str) -> None:
        super().__init__(log, program=("-m", "asr_server", "cluster", *arguments), **settings)

    def wait_until_ready(self) -> None:
        """Return when all replicas serve; fail with the log when the process ends."""
        give_up_s = time.monotonic() + _START_S
        while "engine replicas serve at" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < give_up_s, self.log()
            time.sleep(0.1)
        while True:
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < give_up_s, self.log()
            time.sleep(0.1)

    def processes(self, part: str = "") -> list[int]:
        """Return the running processes of a part, or of the whole cluster. A part is in `_TITLES`, or Ray's program."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                name = path.read_text().partition("\0")[0]
                is_part = name.startswith(_TITLES[part]) if part in _TITLES else name.endswith(part)
                if is_part and self._is_ours(int(path.parent.name)):
                    found.append(int(path.parent.name))
            except OSError:
                continue  # it has just ended
        return sorted(found)

    def _is_ours(self, pid: int) -> bool:
        while pid > 1:
            if pid == self.process.pid:
                return True
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return False


def runs(pid: int) -> bool:
    """Return True if the process runs. One that has ended and was not waited for does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def running(log: Path, *arguments: str, **settings: str) -> Iterator[ClusterProcess]:
    """A cluster whose replicas have loaded their models; stopped at the end."""
    cluster = ClusterProcess(log, *arguments, **{"SPEECH": "off", "SPEAKERS": "off", **settings})
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.stop()
