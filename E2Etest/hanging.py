"""`asr-server` with the same model, whose first step does not come back for a while. Run as a script."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

from asr_server.cli.main import main
from asr_server.engine.qwen.engine import QwenEngine


def _hang(first_step_s: float) -> None:
    """Let the first step of all take so much longer."""
    step, numbers = QwenEngine.step, itertools.count()

    def stuck(engine: QwenEngine) -> Any:
        time.sleep(0 if next(numbers) else first_step_s)
        return step(engine)

    QwenEngine.step = stuck  # type: ignore[method-assign]


if __name__ == "__main__":
    _hang(float(os.environ["FIRST_STEP_S"]))
    sys.exit(main(["serve"]))
