"""`asr-server` with the same model, in which a request brings its own fault: its `prompt` names it. Run as a script.

Every word is the model's own; only faults are injected. A hang lasts until `GO` is in the working directory; `HANGS` is
there while it does. On SIGUSR1 the names of all tasks are written to `TASKS`. The tests' side of it is in `rig.py`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from asr_server.cli.main import main
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen.engine import QwenEngine

GO, HANGS, TASKS = "go", "hangs", "tasks"


class Fault(StrEnum):
    """What goes wrong, and where on the way of a row."""

    RAISE_AT_ADMISSION = "raise at admission"
    RAISE_IN_PREFILL = "raise in prefill"
    RAISE_WHILE_DECODING = "raise while decoding"
    MEMORY_IN_PREFILL = "memory in prefill"
    MEMORY_WHILE_DECODING = "memory while decoding"
    HANG_AT_ADMISSION = "hang at admission"
    HANG_WHILE_DECODING = "hang while decoding"


def _inject() -> None:
    admit, load = QwenEngine.admit, QwenEngine.load

    def faulty_admit(engine: QwenEngine, key: int, item: Utterance) -> None:
        _go_wrong(item.context, Fault.RAISE_AT_ADMISSION, Fault.HANG_AT_ADMISSION)
        admit(engine, key, item)

    def faulty_load(engine: QwenEngine) -> None:
        load(engine)
        assert engine._runtime is not None
        _spoil(engine, engine._runtime)

    QwenEngine.admit = faulty_admit  # type: ignore[method-assign]
    QwenEngine.load = faulty_load  # type: ignore[method-assign]


def _spoil(engine: QwenEngine, runtime: Any) -> None:
    prefill, step, hung = runtime.prefill, runtime.step, set[int]()

    def contexts(keys: Iterable[int]) -> str:
        return " ".join(engine._work[key].utterance.context for key in keys)

    def faulty_prefill(rows: Any) -> None:
        found = contexts(row.key for row, _ in rows)
        _go_wrong(found, Fault.RAISE_IN_PREFILL, Fault.MEMORY_IN_PREFILL)
        prefill(rows)

    def faulty_step() -> None:
        rows = [row.key for row in runtime.decoder.rows]
        found = contexts(rows)
        _go_wrong(found, Fault.RAISE_WHILE_DECODING, Fault.MEMORY_WHILE_DECODING)
        _go_wrong(contexts(set(rows) - hung), Fault.HANG_WHILE_DECODING)
        hung.update(rows)
        step()

    runtime.prefill, runtime.step = faulty_prefill, faulty_step


def _go_wrong(contexts: str, *faults: Fault) -> None:
    for fault in faults:
        if fault not in contexts:
            continue
        if fault.startswith("memory"):
            raise MemoryError
        if fault.startswith("raise"):
            raise RuntimeError("injected")
        _hang()


def _hang() -> None:
    here = Path(HANGS)
    here.touch()
    while not Path(GO).exists():
        time.sleep(0.01)
    here.unlink()


def _tell_tasks(*_: object) -> None:
    names = sorted(getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    written = Path(f"{TASKS}.new")
    written.write_text("\n".join(names), encoding="utf-8")
    written.rename(TASKS)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _tell_tasks)
    _inject()
    sys.exit(main(["serve"]))
