"""What does a row cost with an engine process, and with the engine on a thread of the server?

The fake engine answers at once, so that what is left is the way there and back. Both take turns, as other programs make
all of it slower; processor time hardly changes with them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import uvloop

from asr_server import feature_list
from asr_server.core import settings as settings_module
from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine import core as engine_core
from asr_server.engine import remote
from asr_server.engine.client import EngineClient
from asr_server.engine.core import NOBODY, EngineCore
from asr_server.engine.protocol import Utterance
from asr_server.schedule.job import Priority

ROUNDS, ROWS = 6, 200
_FIGURES = ("answer_ms", "server_ms", "all_ms")
# Seconds of audio, and the class of work: a partial of an open utterance, and a span of a recording.
KINDS = {"partial of 3 s": (3.0, Priority.PARTIAL), "span of 30 s": (30.0, Priority.INTERACTIVE)}


def measure(rounds: int = ROUNDS, rows: int = ROWS) -> dict[str, object]:
    """Milliseconds for a row, one after the other: until its answer, of the processor by the server, and by all."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(_all(rounds, rows))
    return {"question": f"a row with the fake engine, {rounds} rounds of {rows} rows", **found}


async def _all(rounds: int, rows: int) -> dict[str, object]:
    figures: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cores = {"thread": _core(folder, chosen=False), "process": _core(folder, chosen=True)}
        for core in cores.values():
            await asyncio.wrap_future(core.thread.load())
        for _ in range(rounds):
            for name, core in cores.items():
                for kind, (audio_s, priority) in KINDS.items():
                    figures.setdefault(f"{kind}, {name}", []).append(await _rows(core, audio_s, priority, rows))
        for core in cores.values():
            await asyncio.to_thread(core.thread.close)
    return {name: dict(zip(_FIGURES, _medians_ms(found), strict=True)) for name, found in figures.items()}


def _medians_ms(found: list[tuple[float, float, float]]) -> list[float]:
    return [round(1000 * statistics.median(values), 3) for values in zip(*found, strict=True)]


def _core(folder: str, *, chosen: bool) -> EngineCore:
    script = Path(folder) / "script.json"
    script.write_text('{"words_per_s": 0.1}')  # some three steps
    os.environ["FAKE_ENGINE_SCRIPT"] = str(script)
    settings = settings_module.load(_env_file=None, model_id="fake", state_dir=folder, engine_process=chosen)
    build = remote.build if chosen else engine_core.build
    return build(settings, feature_list.resolve(settings), NOBODY)


async def _rows(core: EngineCore, audio_s: float, priority: Priority, rows: int) -> tuple[float, float, float]:
    """Return seconds for a row: the median until its answer, and those of the processors."""
    engine, audio = EngineClient(core.thread), np.full(int(audio_s * SAMPLE_RATE), 0.5, np.float32)
    server_s, all_s, waits_s = _processor_s([os.getpid()]), _processor_s(_family()), []
    for number in range(rows):
        began_s = time.monotonic()
        await engine.transcribe(Utterance(audio, session=f"s:{number}"), priority=priority)
        waits_s.append(time.monotonic() - began_s)
    server_s, all_s = _processor_s([os.getpid()]) - server_s, _processor_s(_family()) - all_s
    return statistics.median(waits_s), server_s / rows, all_s / rows


def _family() -> list[int]:
    own = os.getpid()
    return [own, *map(int, Path(f"/proc/{own}/task/{own}/children").read_text().split())]


def _processor_s(processes: list[int]) -> float:
    """Return the seconds that all threads of the processes have run (sched_schedstat, proc(5))."""
    total_ns = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9
