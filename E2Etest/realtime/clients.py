"""Other clients of OpenAI than the installed one, each run in a process of its own. Where they come from is
`openai_clients.py`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
TIMEOUT_S = 60


def play(command: list[str], script: dict, **environment: str) -> dict:
    """Return the record of a driver of a session played by `script`: events, subprotocol and close."""
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
