"""The engine process of a server whose answers are scripted; see `scripted_server`."""

from __future__ import annotations

import os
from pathlib import Path

from asr_server.features.engine_process.__main__ import main
from tools.gpu import engine_time
from tools.gpu.scripted_server import scripted_answers

if __name__ == "__main__":
    with scripted_answers(), engine_time.timed(Path(os.environ["ENGINE_TIMES"])):
        main()
