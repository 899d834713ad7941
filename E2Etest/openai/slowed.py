"""`asr-server` with the same model, each step of the engine held up: for what happens in the middle of work.

Run as a script. Every word is the model's own; only time is injected. Streams ping sooner, so that stalls are short.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

from asr_server.api.http import sse
from asr_server.cli.main import main
from asr_server.engine.qwen.engine import QwenEngine

STALL_EVERY = 10
STALL_S = 0.5
PING_S = 0.2


def _hold_up(step_s: float) -> None:
    """Let every step take `step_s` longer, and every tenth `STALL_S`."""
    step, numbers = QwenEngine.step, itertools.count()

    def slow(engine: QwenEngine) -> Any:
        time.sleep(step_s if next(numbers) % STALL_EVERY else STALL_S)
        return step(engine)

    QwenEngine.step = slow  # type: ignore[method-assign]
    sse.PING_S = PING_S


if __name__ == "__main__":
    _hold_up(float(os.environ["SLOWED_STEP_S"]))
    sys.exit(main(["serve"]))
