"""A server in a thread of the test process: the app as `asr-server serve` builds it, with the fake engine."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from asr_server import server as composition
from asr_server.cli import serve
from asr_server.core.settings import LogLevel, Settings
from E2Etest.contract import engine
from E2Etest.contract.engine import Behaviour
from E2Etest.process import Server

_END_S = 60.0


class InProcessServer(Server):
    """Serves until `stop`. `behaviour` is what its engine does. Use `running()`.

    `settings` are named as in the environment, which is not looked at.
    """

    def __init__(self, folder: Path, log: Path, *, behaviour: Behaviour | None = None, **settings: str) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        super().__init__(port, key=settings.get("API_KEYS", "").partition(",")[0])
        self.behaviour = behaviour or Behaviour()
        self.log_path = log
        self._logged_before = log.stat().st_size
        self.state = Path(settings.get("STATE_DIR", folder / "state"))
        given = {"MODEL_ID": "demo", **settings, "STATE_DIR": str(self.state), "PORT": str(port)}
        self._settings = _settings(given)
        with mock.patch.object(composition.registry, "build_aligning", self._build_engine):
            self._app = composition.create_app(self._settings)
            self._server = serve.http_server(self._app, functools.partial(composition.drain, self._app), {})
            self._thread = threading.Thread(target=self._server.run, args=([listener],), name="server")
            self._thread.start()
            while not self._server.started:
                assert self._thread.is_alive(), self.log()
                self._thread.join(0.005)

    def log(self) -> str:
        """Everything that was logged in this process since the server was started."""
        with self.log_path.open("rb") as file:
            file.seek(self._logged_before)
            return file.read().decode("utf-8", "replace")

    def begin_to_stop(self) -> None:
        """As SIGTERM does: drain, then end."""
        self._server.should_exit = True

    def stop(self) -> None:
        """Drain and end."""
        self._clients.close()
        self.begin_to_stop()
        self._thread.join(_END_S)
        assert not self._thread.is_alive()

    def _build_engine(self, plan, *, idle_timeout_s, on_progress=lambda: None):
        return engine.aligning(plan, self.behaviour, idle_timeout_s)


def _settings(given: dict[str, str]) -> Settings:
    """Settings from `given` alone."""
    with mock.patch.dict(os.environ, given, clear=True):
        return Settings(_env_file=None)


@contextmanager
def running(folder: Path, log: Path, **options: object) -> Iterator[InProcessServer]:
    """A live server; stopped at the end."""
    server = InProcessServer(folder, log, **options)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def logging_to(path: Path, level: LogLevel = LogLevel.TRACE) -> Iterator[Path]:
    """Let this process log to a file, as a server does to its standard error."""
    with path.open("a", buffering=1, encoding="utf-8") as sink:
        with contextlib.redirect_stderr(sink):
            serve.configure_logging(Settings(_env_file=None, log_level=level))
        yield path
