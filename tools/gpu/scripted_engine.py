"""The engine process of a server whose answers are scripted; see `scripted_server`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from asr_server.cli.main import main
from tools.gpu import engine_time
from tools.gpu.scripted_server import scripted_answers

if __name__ == "__main__":
    with scripted_answers(), engine_time.timed(Path(os.environ["ENGINE_TIMES"])):
        sys.exit(main(["engine", *sys.argv[1:]]))
