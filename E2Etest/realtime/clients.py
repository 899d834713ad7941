"""Other clients of OpenAI than the installed one: installed on demand and once, run in a process of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".venv"
TIMEOUT_S = 60


def old_python(version: str) -> Path:
    """A folder with that version of the Python client."""
    folder = HOME / f"openai-{version}"
    return _once(
        folder, [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), f"openai[realtime]=={version}"]
    )


def javascript(version: str) -> Path:
    """A folder with that version of the JavaScript client."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on this machine")
    folder = HOME / "js" / f"openai-{version}"
    return _once(
        folder, ["npm", "install", "--prefix", str(folder), f"openai@{version}", "ws", "--no-audit", "--no-fund"]
    )


def play(command: list[str], script: dict, **environment: str) -> dict:
    """What a driver saw of a session played by `script`: its events, the subprotocol, how it closed."""
    done = subprocess.run(
        command,
        input=json.dumps(script),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _once(folder: Path, command: list[str]) -> Path:
    stamp = folder / ".installed"
    if not stamp.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True, capture_output=True, timeout=110)
        stamp.touch()
    return folder
