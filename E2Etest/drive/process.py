"""A real server process to test against, started as a user starts it, on a free port, with its log in a file."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from E2Etest.drive import procfs
from E2Etest.drive.procfs import until

if TYPE_CHECKING:
    import openai

START_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 180.0
SERVE = ("-m", "asr_server", "serve")
FIRST, SECOND = "sk-canary-first", "sk-canary-second"  # keys of a guarded server: no log may have them
GUARDED = {
    "API_KEYS": f"{FIRST},{SECOND}",
    "OPENAI_API_KEY": "sk-canary-elsewhere",
    "TRANSLATE_MODEL": "scripted",
    "SPEECH_CLONE_MODEL": "fake",
    "MAX_UPLOAD_MB": "4",
    "MAX_AUDIO_S": "120",
    "WS_RESUME_S": "2",
}


def events(answer: httpx.Response) -> list[dict]:
    """Return the events of a stream, without the mark of its end."""
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def refusal(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    """Return the status, the code and the field of an error, whose envelope is complete."""
    body = answer.json()
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return answer.status_code, body["error"]["code"], body["error"]["param"]


def at_rest(health: dict) -> bool:
    """Return True if nothing waits, runs, or is held."""
    queue = health["queue"]
    return not any(queue[name] for name in ("final", "partial", "interactive", "bulk", "running", "audio_held_s"))


class Server:
    """A server at `base` or on `port` of this machine, and clients for it that send its first key."""

    def __init__(
        self, port: int = 0, *, base: str = "", key: str = "", certificate: str | None = None, model: str = "demo"
    ) -> None:
        self.port, self.key, self.certificate, self.model = port, key, certificate, model
        self.base = base or f"http{'s' if certificate else ''}://127.0.0.1:{port}"
        self.live_url = self.base.replace("http", "ws", 1) + "/ws/transcribe"
        # To read all public certificates takes 30 ms.
        trusted = ssl.create_default_context(cafile=certificate) if certificate else self.base.startswith("https")
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
        self._clients.close()

    def post(self, path: str, audio: bytes, *, name: str = "audio.wav", **fields: object) -> httpx.Response:
        return self.client.post(path, files={"file": (name, audio)}, data=fields)

    def transcribe(self, audio: bytes, *, name: str = "audio.wav", **fields: object) -> httpx.Response:
        """Post a recording to be transcribed by the model of this server."""
        return self.post("/v1/audio/transcriptions", audio, name=name, **{"model": self.model, **fields})

    def job(self, audio: bytes, **fields: object) -> tuple[dict, httpx.Response]:
        """Run a job to its end, and return its last state and its result."""
        made = self.post("/v1/jobs", audio, **fields)
        assert made.status_code == 202, made.text
        path = f"/v1/jobs/{made.json()['id']}"
        return events(self.client.get(f"{path}/events"))[-1], self.client.get(f"{path}/result")

    def health(self) -> dict:
        return self.client.get("/health").json()

    def wait_for(self, condition, timeout_s: float = 30.0) -> dict:
        """Poll `/health` until `condition` holds for it, and return it."""
        found: dict = {}

        def holds() -> bool:
            found.update(self.health())
            return condition(found)

        until(holds, timeout_s, lambda: str(found))
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
        certificate, key, model = (
            settings.get(name, default).partition(",")[0]
            for name, default in (("SSL_CERTFILE", ""), ("API_KEYS", ""), ("MODEL_ID", "demo"))
        )
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

        def lives() -> bool:
            assert self.process.poll() is None, self.log()
            with suppress(httpx.TransportError):
                return self.client.get("/livez").status_code == 200
            return False

        until(lives, timeout_s, self.log)

    def resident_mb(self) -> float:
        """Return the resident memory of the server process and its children, in MiB."""
        return sum(procfs.proportional_mb(pid) for pid in procfs.family(self.process.pid))

    def own_mb(self) -> float:
        return procfs.proportional_mb(self.process.pid)

    def open_files(self) -> list[str]:
        """Return the open files and pipes of the server process and its children, without sockets."""
        links = [link for pid in procfs.family(self.process.pid) for link in Path(f"/proc/{pid}/fd").iterdir()]
        return sorted(kind for link in links if not (kind := os.readlink(link).split(":")[0]).startswith("socket"))

    def log(self) -> str:
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


def fake_model(folder: Path, *, script: dict[str, object] | None = None, **rule: object) -> dict[str, str]:
    """Return the settings for the fake engine, which answers every utterance by `rule` (see `asr_server_fake`).

    It loads and works so slowly that it can be killed in the middle, unless `script` says otherwise.
    """
    path = folder / "script.json"
    content = {"load_s": 1.0, "step_s": 0.01, "rules": [rule], **(script or {})}
    path.write_text(json.dumps(content), encoding="utf-8")
    return {"MODEL_ID": "fake", "FAKE_ENGINE_SCRIPT": str(path)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
