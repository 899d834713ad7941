"""`asr-server demo`: runs the real server with a bundled model, posts a bundled recording, compares the words."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

from asr_server import demo
from asr_server.cli import arguments
from asr_server.cli.serve import serve
from asr_server.client.files import FileClient, FileError, ServerUnreachable
from asr_server.core import settings
from asr_server.core.setting_types import LogLevel
from asr_server.features.moonshine import package as moonshine
from asr_server.features.speech_output.engines.espeak import package as espeak


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=arguments.port, default=8100, help="port to listen on (default 8100)")
    parser.add_argument("--once", action="store_true", help="stop after the first transcription")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    """Return 1 if the words are wrong or the server does not start, else 0."""
    # The package of the English model exists for the most common machines only.
    english = moonshine.installed()
    sample, base, wrong = demo.speech() if english else demo.sample(), f"http://127.0.0.1:{parsed.port}", []

    def show() -> None:
        if not _transcribe(base, sample):
            wrong.append(sample)
        if parsed.once:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            _print_next_steps(base, sample.recording, english=english)

    model = moonshine.MODEL_ID if english else "demo"
    # Keys and certificates in the environment are meant for other servers.
    own = {"host": "127.0.0.1", "port": parsed.port, "api_keys": "", "ssl_certfile": ""}
    chosen = settings.load(**own, model_id=model, log_level=LogLevel.WARNING)
    print(f"Starting the server on {base} with the model {model}; loading takes a few seconds ...", flush=True)
    threading.Thread(target=show, daemon=True).start()
    return serve(chosen) or int(bool(wrong))


def _transcribe(base: str, sample: demo.Sample) -> bool:
    """Post the recording once the server listens, and print both texts. Returns whether the words are the same."""
    start_s, text = time.monotonic(), ""
    with FileClient(base) as client:
        while not text:
            try:
                text = client.transcribe(sample.recording).strip()
            except ServerUnreachable:
                time.sleep(0.1)
            except FileError as error:
                text = error.message
    print(f"\n  spoken:      {sample.text}\n  transcript:  {text}\n", flush=True)
    right = demo.words(text) == demo.words(sample.text)
    print("The words are right." if right else "The words differ.", f"({time.monotonic() - start_s:.1f} s)", flush=True)
    return right


def _print_next_steps(base: str, recording: Path, *, english: bool) -> None:
    print(
        f"\nNext steps:\n  curl {base}/v1/audio/transcriptions -F file=@{os.path.relpath(recording)} -F model=whisper-1"
    )
    if not espeak.missing():
        text = """-H 'Content-Type: application/json' -d '{"input": "Hello."}' -o hello.mp3"""
        print(f"  curl {base}/v1/audio/speech {text}")
    knows = "English only" if english else "about a hundred words, and takes all others for one of them"
    invitation = "say a sentence in English" if english else 'say one of its words: "turn on the lights"'
    print(
        f"""  the API:         {base}/docs
  a larger model:  make serve MODEL_ID=Qwen/Qwen3-ASR-0.6B   (30 languages; downloads 2 GB)
The model is small, for trying the server; it knows {knows}.
The server is running. Ctrl-C stops it.
Press Start and {invitation}: {base}/""",
        flush=True,
    )
