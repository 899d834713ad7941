"""`asr-server demo`: starts the real server with a bundled model, posts a bundled recording, compares the words."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_server.cli import arguments
from asr_server.core.environment import process_environment
from asr_server.demo import Sample, sample, speech
from asr_server.features.moonshine import package
from asr_server.features.speech_output.engines.espeak import package as espeak


@dataclass(frozen=True, slots=True)
class _DemoModel:
    """A model that the demonstration can use."""

    name: str
    description: str
    sample: Sample
    invitation: str  # what to say
    limits: str  # what not to expect


_START_TIMEOUT_S = 60.0
# The first request loads the model: importing its libraries alone takes 10 s on a small CPU.
_FIRST_ANSWER_TIMEOUT_S = 180.0
# The server is on this machine: no proxy, and its certificate is for another name.
_LOCAL: dict[str, Any] = {"trust_env": False, "verify": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--port", type=arguments.port, default=8100, help="port to listen on (default 8100)")
    parser.add_argument("--once", action="store_true", help="stop after the first transcription")
    parser.set_defaults(run=lambda parsed: demo(parsed.port, once=parsed.once))


def demo(port: int, *, once: bool) -> int:
    """Transcribe the bundled recording. Returns 1 when the words are wrong, or the server does not start; else 0."""
    if _is_used(port):
        print(
            f"Port {port} is in use. Stop the program that listens there, or choose another port: make demo PORT=8101",
            file=sys.stderr,
        )
        return 1
    base = f"{_scheme()}://127.0.0.1:{port}"
    # A shell that runs this command in the background makes it ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    model = _model()
    print(f"Starting the server on {base} with {model.description} ...", flush=True)
    server = _start(port, model)
    try:
        if not _wait_until_live(base, server):
            print("The server did not start; its log is above.", file=sys.stderr)
            return 1
        right = _show(base, model)
        if once:
            return 0 if right else 1
        _print_next_steps(base, model)
        server.wait()
        return 0
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(server)


def _model() -> _DemoModel:
    """Return the English model where its package is installed: it exists for the most common machines only."""
    if package.installed():
        return _DemoModel(
            package.MODEL_ID,
            "Moonshine tiny, a small model of English",
            speech(),
            "say a sentence in English",
            "The model is small and knows English only; it is for trying the server.",
        )
    return _DemoModel(
        "demo",
        "the demonstration model",
        sample(),
        'say one of its words: "turn on the lights"',
        "The demonstration model knows about a hundred words, and recognizes all others as one of them.",
    )


def _is_used(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start(port: int, model: _DemoModel) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "asr_server",
        "serve",
        "--model",
        model.name,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    # In a session of its own: Ctrl-C reaches this process alone, which then stops the server in order.
    return subprocess.Popen(command, env=process_environment(LOG_LEVEL="WARNING"), start_new_session=True)


def _wait_until_live(base: str, server: subprocess.Popen[bytes]) -> bool:
    import httpx

    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            if httpx.get(f"{base}/livez", timeout=2, **_LOCAL).status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(0.1)
    return False


def _show(base: str, model: _DemoModel) -> bool:
    """Post the recording and print both texts. Returns True when they are the same words."""
    recording, reference = model.sample.recording, model.sample.text
    print(f"Posting {recording.name}; the first request loads the model, a few seconds ...", flush=True)
    start_s = time.monotonic()
    text = _transcribe(base, recording, model)
    print(f"\n  spoken:      {reference}\n  transcript:  {text}\n", flush=True)
    right = _words(text) == _words(reference)
    print("The words are right." if right else "The words differ.", f"({time.monotonic() - start_s:.1f} s)", flush=True)
    return right


def _words(text: str) -> list[str]:
    """Return the words without punctuation and capitals, which are a matter of taste."""
    return re.findall(r"[a-z']+", text.lower())


def _transcribe(base: str, recording: Path, model: _DemoModel) -> str:
    import httpx

    with recording.open("rb") as file:
        answer = httpx.post(
            f"{base}/v1/audio/transcriptions",
            files={"file": (recording.name, file)},
            data={"model": model.name},
            headers=_key(),
            timeout=_FIRST_ANSWER_TIMEOUT_S,
            **_LOCAL,
        )
    body = answer.json()
    return str(body["text"] if answer.status_code == 200 else body["error"]["message"])


def _scheme() -> str:
    """The settings of the environment may name a certificate."""
    from asr_server.core import settings

    return "https" if settings.load(host="127.0.0.1").ssl_certfile else "http"


def _key() -> dict[str, str]:
    """The settings of the environment may have keys."""
    from asr_server.core import settings

    keys = settings.load(host="127.0.0.1").keys
    return {"Authorization": f"Bearer {keys[0]}"} if keys else {}


def _print_next_steps(base: str, model: _DemoModel) -> None:
    recording = os.path.relpath(model.sample.recording)
    print(
        f"""
Next steps:
  curl {base}/v1/audio/transcriptions -F file=@{recording} -F model=whisper-1
{_speaking(base)}  the API:         {base}/docs
  a larger model:  make serve MODEL_ID=Qwen/Qwen3-ASR-0.6B   (30 languages; downloads 2 GB)
{model.limits}
The server is running. Ctrl-C stops it.
Press Start and {model.invitation}: {base}/""",
        flush=True,
    )


def _speaking(base: str) -> str:
    """Return a line that speaks, where something can."""
    if espeak.missing():
        return ""
    return (
        f"  curl {base}/v1/audio/speech -H 'Content-Type: application/json' "
        """-d '{"input": "Hello."}' -o hello.mp3\n"""
    )


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=40)
    except subprocess.TimeoutExpired:
        server.kill()
