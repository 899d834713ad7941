"""`asr-server demo`: starts the real server with the bundled model, posts the bundled recording, compares the words."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from asr_server.cli import arguments
from asr_server.demo import sample

_START_TIMEOUT_S = 60.0
# The first request loads the model: importing its libraries alone takes 10 s on a small CPU.
_FIRST_ANSWER_TIMEOUT_S = 180.0
# A proxy of the environment is for the world outside, and a certificate for the name that others use.
_OF_OURS: dict[str, Any] = {"trust_env": False, "verify": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--port", type=arguments.port, default=8100, help="port to listen on (default 8100)")
    parser.add_argument("--once", action="store_true", help="stop after the first transcription")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    return demo(parsed.port, once=parsed.once)


def demo(port: int, *, once: bool) -> int:
    """Show that the server hears. Returns 0 when the words were right, 1 when not or when it did not start."""
    if _taken(port):
        print(
            f"Port {port} is in use. Stop what listens there, or choose another: make demo PORT=8101", file=sys.stderr
        )
        return 1
    base = f"{_scheme()}://127.0.0.1:{port}"
    # Explicitly, since a shell that runs this in the background has told it to ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"Starting the server on {base} with the bundled demonstration model ...", flush=True)
    server = _start(port)
    try:
        if not _wait_until_live(base, server):
            print("The server did not start; its log is above.", file=sys.stderr)
            return 1
        right = _show(base)
        if once:
            return 0 if right else 1
        _print_next_steps(base)
        server.wait()
        return 0
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(server)


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _start(port: int) -> subprocess.Popen[bytes]:
    from asr_server.core.settings import process_environment

    command = [
        sys.executable,
        "-m",
        "asr_server",
        "serve",
        "--model",
        "demo",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    # Its own session: Ctrl-C goes to this process, which then stops the server in order.
    return subprocess.Popen(command, env=process_environment(LOG_LEVEL="WARNING"), start_new_session=True)


def _wait_until_live(base: str, server: subprocess.Popen[bytes]) -> bool:
    import httpx

    give_up_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < give_up_s and server.poll() is None:
        try:
            if httpx.get(f"{base}/livez", timeout=2, **_OF_OURS).status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(0.1)
    return False


def _show(base: str) -> bool:
    """Post the recording and print both texts; True when they are the same words."""
    recording, said = sample().recording, sample().text
    print(f"Posting {recording.name}; the first request loads the model, a few seconds ...", flush=True)
    began_s = time.monotonic()
    heard = _transcribe(base, recording)
    print(f"\n  said:   {said}\n  heard:  {heard}\n", flush=True)
    right = heard.lower().split() == said.lower().split()
    print("The words are right." if right else "The words differ.", f"({time.monotonic() - began_s:.1f} s)", flush=True)
    return right


def _transcribe(base: str, recording: Path) -> str:
    import httpx

    with recording.open("rb") as file:
        answer = httpx.post(
            f"{base}/v1/audio/transcriptions",
            files={"file": (recording.name, file)},
            data={"model": "demo"},
            headers=_key(),
            timeout=_FIRST_ANSWER_TIMEOUT_S,
            **_OF_OURS,
        )
    body = answer.json()
    return str(body["text"] if answer.status_code == 200 else body["error"]["message"])


def _scheme() -> str:
    """As `_key`: a certificate may be among the settings, too."""
    from asr_server.core import settings

    return "https" if settings.load(host="127.0.0.1").ssl_certfile else "http"


def _key() -> dict[str, str]:
    """The demonstration runs with the settings of its environment, where keys may be among them."""
    from asr_server.core import settings

    keys = settings.load(host="127.0.0.1").keys
    return {"Authorization": f"Bearer {keys[0]}"} if keys else {}


def _print_next_steps(base: str) -> None:
    recording = os.path.relpath(sample().recording)
    print(
        f"""
Go on:
  curl {base}/v1/audio/transcriptions -F file=@{recording} -F model=whisper-1
  the page:        {base}/   (press Start and say one of its words: "turn on the lights")
  the API:         {base}/docs
  a real model:    make serve MODEL_ID=Qwen/Qwen3-ASR-0.6B
The demonstration model knows about a hundred words and takes all else for one of
them; a real one knows 30 languages.
The server is running. Ctrl-C stops it.""",
        flush=True,
    )


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=40)
    except subprocess.TimeoutExpired:
        server.kill()
