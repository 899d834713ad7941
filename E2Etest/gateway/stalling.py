"""A gateway whose first worker hangs in a step, or stands still in a load. Run as a script; its workers run it too."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from asr_server.cli.main import main

_FOR_EVER_S = 3_600


def _start_workers_that_run_this() -> None:
    start = asyncio.create_subprocess_exec

    async def start_this(python, *arguments, **more):
        return await start(python, "-P", __file__, *arguments[arguments.index("worker") :], **more)

    asyncio.create_subprocess_exec = start_this


def _stall() -> None:
    """Once: the next worker is well."""
    from asr_server.engine.qwen.engine import QwenEngine

    def stall():
        try:
            Path(os.environ["STALLED_ONCE"]).touch(exist_ok=False)
        except FileExistsError:
            return
        if "STALL_LOAD_S" in os.environ:
            # Called by PyDLL, it keeps the interpreter's lock: no other thread of the process moves.
            ctypes.PyDLL(None).sleep(int(os.environ["STALL_LOAD_S"]))
        else:
            time.sleep(_FOR_EVER_S)

    name = "load" if "STALL_LOAD_S" in os.environ else "step"
    method = getattr(QwenEngine, name)

    def stalling(engine, *arguments):
        stall()
        return method(engine, *arguments)

    setattr(QwenEngine, name, stalling)


if __name__ == "__main__":
    if sys.argv[1:]:
        _stall()
    else:
        _start_workers_that_run_this()
    sys.exit(main(sys.argv[1:] or ["serve"]))
