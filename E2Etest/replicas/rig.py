"""Real servers with one shared engine behind a real HAProxy with deploy/haproxy.cfg; each can be replaced or killed."""

from __future__ import annotations

import csv
import io
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from E2Etest.drive.process import LOAD_TIMEOUT_S, START_TIMEOUT_S, Server, ServerProcess, free_port, until

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
# Faster health checks, and a shorter drain, than a real site would have.
CHECKS_OF_THE_FILE, CHECKS_HERE = "inter 1s fall 2 rise 1", "inter 300ms fall 2 rise 1"
DRAIN_DELAY_S = "2"
_EXIT_TIMEOUT_S = 60.0


class Replicas(Server):
    """Servers with the same `settings` and one engine behind one address. Use `balanced()`."""

    def __init__(self, folder: Path, **settings: str) -> None:
        if shutil.which("haproxy") is None:
            raise RuntimeError("these tests need HAProxy: sudo apt-get install haproxy")
        port = free_port()
        super().__init__(port, key=settings.get("API_KEYS", "").partition(",")[0], model=settings["MODEL_ID"])
        self._engine_settings, self._socket = settings, folder / "engine.sock"
        shared = {"ENGINE_PROCESS": f"unix:{self._socket}", "DRAIN_DELAY_S": DRAIN_DELAY_S, "LOG_LEVEL": "INFO"}
        self._settings = {**shared, **settings}
        self._ports = {f"asr{number}": free_port() for number in range(1, 5)}
        self._started = 0
        self.servers: dict[str, ServerProcess] = {}
        self._folder, self.log_path = folder, folder / "log"
        self._statistics = folder / "haproxy.socket"
        text = CONFIGURATION.read_text(encoding="utf-8")
        assert CHECKS_OF_THE_FILE in text
        statistics = f"global\n    stats socket {self._statistics} mode 600 level user\n"
        configuration = folder / "haproxy.cfg"
        configuration.write_text(text.replace(CHECKS_OF_THE_FILE, CHECKS_HERE) + statistics, encoding="utf-8")
        addresses = {name.upper(): f"127.0.0.1:{each}" for name, each in self._ports.items()}
        with self.log_path.open("ab") as sink:
            self._haproxy = subprocess.Popen(
                ["haproxy", "-db", "-f", str(configuration)],
                env={**os.environ, **addresses, "ASR_LISTEN": f"127.0.0.1:{port}"},
                stdout=sink,
                stderr=sink,
                cwd=folder,
            )
        until(self._statistics.exists, START_TIMEOUT_S, self.log)
        self.start_engine()

    def start_engine(self) -> None:
        """Start the engine. The servers connect to it by themselves."""
        program = ("-m", "asr_server", "engine", "--listen", str(self._socket))
        self._engine = ServerProcess(self.log_path, shared_log=True, program=program, **self._engine_settings)

    def stop_engine(self) -> int:
        return self._engine.stop()

    def log(self) -> str:
        """Return the log of HAProxy and of all servers, also of those that are gone."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def start(self) -> str:
        """Start a server at a free place; return the place once it gets requests."""
        place = next(name for name in self._ports if name not in self.servers)
        self._started += 1
        own = {"STATE_DIR": str(self._folder / f"state{self._started}"), "SERVER_NAME": place}
        self.servers[place] = server = ServerProcess(
            self.log_path, shared_log=True, port=self._ports[place], **{**own, **self._settings}
        )
        server.wait_until_live()
        self._wait_until(place, "UP", LOAD_TIMEOUT_S)
        return place

    def stop_one(self, place: str) -> int:
        """SIGTERM to the server of that place, as an orchestrator sends it. Returns its exit code."""
        server = self.servers.pop(place)
        code = server.stop()
        self._wait_until(place, "DOWN", START_TIMEOUT_S)
        return code

    def roll(self) -> list[int]:
        """Replace every server: a new one first, then the old one goes. Returns their exit codes."""
        codes = []
        for place in list(self.servers):
            self.start()
            codes.append(self.stop_one(place))
        return codes

    def kill(self, place: str) -> None:
        """SIGKILL, as a machine that fails."""
        server = self.servers.pop(place)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(_EXIT_TIMEOUT_S)
        server.close()

    def answered(self) -> dict[str, int]:
        """Return how many connections HAProxy has given to each place."""
        return {name: int(row["stot"]) for name, row in self._rows().items()}

    def stop(self) -> None:
        """End everything."""
        self.close()
        for place in list(self.servers):
            self.servers.pop(place).stop()
        self.stop_engine()
        self._haproxy.terminate()
        self._haproxy.wait(_EXIT_TIMEOUT_S)

    def _wait_until(self, place: str, status: str, timeout_s: float) -> None:
        until(lambda: self._rows()[place]["status"].startswith(status), timeout_s, self.log)

    def _rows(self) -> dict[str, dict[str, str]]:
        """HAProxy's statistics of each server."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self._statistics))
            asking.sendall(b"show stat\n")
            answer = b"".join(iter(lambda: asking.recv(65_536), b"")).decode()
        rows = csv.DictReader(io.StringIO(answer.removeprefix("# ")))
        return {row["svname"]: row for row in rows if row["pxname"] == "asr" and row["svname"] in self._ports}


@contextmanager
def balanced(folder: Path, count: int, **settings: str) -> Iterator[Replicas]:
    """Run this many servers that all get requests, and stop them at the end."""
    replicas = Replicas(folder, **settings)
    try:
        for _ in range(count):
            replicas.start()
        yield replicas
    finally:
        replicas.stop()
