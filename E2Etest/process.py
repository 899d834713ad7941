"""A real server process to test against, started as a user starts it, on a free port, with its log in a file."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import openai

START_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 180.0
SERVE = ("-m", "asr_server", "serve")


class Server:
    """A server at `base` or on `port` of this machine, and clients for it that send its first key."""

    def __init__(
        self, port: int = 0, *, base: str = "", key: str = "", certificate: str | None = None, model: str = "demo"
    ) -> None:
        self.port, self.key, self.certificate, self.model = port, key, certificate, model
        self.base = base or f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        self.live_url = self.base.replace("http", "ws", 1) + "/ws/transcribe"
        trusted = ssl.create_default_context(cafile=certificate) if certificate else True
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=self.base, timeout=LOAD_TIMEOUT_S, verify=trusted, headers=headers)
        self._clients = ExitStack()
        self._clients.enter_context(self.client)

    def openai(self, **options: Any) -> openai.OpenAI:
        """Return OpenAI's own client, set up as a user does it, without retries; it is closed with the server."""
        import openai

        usual = {"base_url": f"{self.base}/v1", "api_key": self.key or "any", "max_retries": 0}
        return self._clients.enter_context(openai.OpenAI(**{**usual, **options}))

    def close(self) -> None:
        """Close the clients."""
        self._clients.close()

    def transcribe(self, audio: bytes, *, name: str = "audio.wav", **fields: object) -> httpx.Response:
        """Post a recording and return the response."""
        data = {"model": self.model, **fields}
        return self.client.post("/v1/audio/transcriptions", files={"file": (name, audio)}, data=data)

    def health(self) -> dict:
        """Return the body of `/health`."""
        return self.client.get("/health").json()

    def wait_for(self, condition, timeout_s: float = 30.0) -> dict:
        """Poll `/health` until `condition` holds for it, and return it."""
        give_up_s = time.monotonic() + timeout_s
        while not condition(found := self.health()):
            assert time.monotonic() < give_up_s, found
            time.sleep(0.02)
        return found

    def log(self) -> str:
        """Return everything that the server wrote."""
        raise NotImplementedError


class RunningServer(Server):
    """The server at `E2E_BASE_URL`, with its live WebSocket at `E2E_WS_URL` if set, and its key `E2E_API_KEY`."""

    def __init__(self) -> None:
        super().__init__(base=os.environ["E2E_BASE_URL"].rstrip("/"), key=os.environ.get("E2E_API_KEY", ""))
        self.live_url = os.environ.get("E2E_WS_URL") or self.live_url
        self.model = self.health()["model_id"]


class ServerProcess(Server):
    """`asr-server serve`, or another `program` for Python, with `settings` as environment. Use `running()`.

    `shared_log`: others write to the log too, so its content is kept.
    """

    def __init__(
        self, log: Path, *, program: Sequence[str] = SERVE, port: int = 0, shared_log: bool = False, **settings: str
    ) -> None:
        certificate, key = settings.get("SSL_CERTFILE"), settings.get("API_KEYS", "").partition(",")[0]
        model = settings.get("MODEL_ID", "demo")
        super().__init__(port or free_port(), key=key, certificate=certificate, model=model)
        self.log_path = log
        environment = {key: value for key, value in os.environ.items() if key not in {"MODEL_ID", "PORT", "HOST"}}
        environment |= {
            "SPEECH": "espeak",  # the voice does not matter to most tests; this one takes the least time
            "ENDPOINTING": "pause",  # most tests set the length of pauses, whatever was said before them
            "MODEL_ID": "demo",
            "LOG_LEVEL": "DEBUG",
            "STATE_DIR": str(log.parent / "state"),
            **settings,
            "PORT": str(self.port),
        }
        with log.open("ab" if shared_log else "wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, *program], env=environment, stderr=sink, stdout=sink, cwd=log.parent
            )

    def wait_until_live(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when `/livez` answers; fail with the log when the process ends."""
        give_up_s = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < give_up_s, self.log()
            try:
                if self.client.get("/livez").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)

    def resident_mb(self) -> float:
        """Return the resident memory of the server process and its children, in MiB."""
        return sum(_resident_kb(pid) for pid in _family(self.process.pid)) / 1024

    def own_mb(self) -> float:
        """Return the resident memory of the server process alone, in MiB."""
        return _resident_kb(self.process.pid) / 1024

    def open_files(self) -> list[str]:
        """Return the open files and pipes of the server process and its children, without sockets."""
        links = [link for pid in _family(self.process.pid) for link in Path(f"/proc/{pid}/fd").iterdir()]
        return sorted(kind for link in links if not (kind := os.readlink(link).split(":")[0]).startswith("socket"))

    def log(self) -> str:
        """Return everything that the process wrote."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextmanager
def running(log: Path, **settings: str) -> Iterator[ServerProcess]:
    """Run a server, which is live when the block begins and is stopped at its end."""
    server = ServerProcess(log, **settings)
    try:
        server.wait_until_live()
        yield server
    finally:
        server.stop()


@contextmanager
def ready(log: Path, **settings: str) -> Iterator[ServerProcess]:
    """Run a server with its model loaded, which it keeps unless `settings` say otherwise."""
    with running(log, **{"PRELOAD": "true", "IDLE_TIMEOUT": "0", **settings}) as server:
        server.wait_for(lambda health: health["model_loaded"], timeout_s=LOAD_TIMEOUT_S)
        yield server


def fake_model(folder: Path, **rule: object) -> dict[str, str]:
    """Return the settings for the fake engine, which answers every utterance by `rule` (see `asr_server_fake`).

    It loads and works so slowly that it can be killed in the middle.
    """
    path = folder / "script.json"
    path.write_text(json.dumps({"load_s": 1.0, "step_s": 0.01, "rules": [rule]}), encoding="utf-8")
    return {"MODEL_ID": "fake", "FAKE_ENGINE_SCRIPT": str(path)}


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(p for child in children for p in _family(int(child)))]


def _resident_kb(pid: int) -> int:
    """Return the memory of a process, shared pages in parts: one that just starts shares all with its parent."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0  # it has just ended
