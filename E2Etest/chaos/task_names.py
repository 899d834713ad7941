"""`asr-server serve` that writes the names of its asyncio tasks to `TASKS` on SIGUSR1. Run as a script."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from asr_server.cli.main import main

TASKS = "tasks"


def _write_tasks(*_: object) -> None:
    names = sorted(getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    written = Path(f"{TASKS}.new")
    written.write_text("\n".join(names), encoding="utf-8")
    written.rename(TASKS)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _write_tasks)
    sys.exit(main(["serve"]))
