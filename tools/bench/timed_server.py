"""Serves as `asr-server serve` does, and writes to the file `LOOP_TIMES` how late its event loop calls what is due, and
the processor time of each of its threads.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asr_server import app as product
from asr_server.cli.main import main

_EVERY_S = 0.005


async def _tick() -> None:
    """Append a line for each second: its end by the clock of the machine, milliseconds, and seconds by thread."""
    late_ms: list[float] = []
    gc.collect()
    gc.freeze()  # as engines do when they have loaded a model, which the fake one does not
    with open(os.environ["LOOP_TIMES"], "a", encoding="utf-8") as out:  # noqa: ASYNC230 - the lines are short
        while True:
            due_s = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            late_ms.append(round(1000 * (time.monotonic() - due_s), 2))
            if sum(late_ms) + 1000 * _EVERY_S * len(late_ms) >= 1000:
                out.write(json.dumps([time.time(), late_ms, _threads_s()]) + "\n")
                out.flush()
                late_ms = []


def _threads_s() -> dict[str, float]:
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        name = thread.name.partition("_")[0]
        found[name] = found.get(name, 0.0) + sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return found


def _serve() -> int:
    routed = product.routed

    def with_ticks(lifespan: Any, rules: Any) -> Any:
        @asynccontextmanager
        async def ticking(app: Any) -> AsyncIterator[None]:
            async with lifespan(app):
                task = asyncio.create_task(_tick())
                yield
                task.cancel()

        return routed(ticking, rules)

    product.routed = with_ticks
    return main(["serve"])


if __name__ == "__main__":
    sys.exit(_serve())
