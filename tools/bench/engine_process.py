"""What does an engine process cost a row, beside the engine on a thread of the server?

The fake engine answers at once, so that what is left is the way there and back; the demonstration model shows what that
is of real work. Both arrangements take turns, as other programs make all of it slower; processor time hardly changes
with them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import uvloop
from numpy.typing import NDArray

from asr_server import feature_list
from asr_server.core import settings as settings_module
from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine import core as engine_core
from asr_server.engine import remote
from asr_server.engine.client import EngineClient
from asr_server.engine.core import NOBODY, EngineCore
from asr_server.engine.protocol import Utterance
from asr_server.schedule.job import Priority
from E2Etest.drive import recordings
from E2Etest.drive.procfs import family

ROWS, ROUNDS = 300, 12
SPANS, SPAN_S = 24, 5.0  # of the demonstration model, together
# Seconds of audio, and the class of work: partials of an open utterance, and a span of a recording.
KINDS = {
    "partial of 1 s": (1.0, Priority.PARTIAL),
    "partial of 8 s": (8.0, Priority.PARTIAL),
    "span of 30 s": (30.0, Priority.INTERACTIVE),
}


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, object]:
    """Milliseconds for a row: until its answer, and of the event loop. With the demonstration model also how much more
    audio in a second the process does, of spans that come together."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        fake = runner.run(_measured("fake", rows, 0))
        demo = runner.run(_measured("demo", max(1, rows // 10), rounds))
    return {
        "question": f"a row with the fake engine ({rows} rows of each kind) and with the demonstration model",
        "fake": fake,
        "demo": demo,
        "target": "loop_ms of the process at most 0.3; a partial at most 3 ms later; throughput within 3 %",
    }


async def _measured(model_id: str, rows: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        cores = {name: _core(folder, model_id, chosen=name == "process") for name in ("thread", "process")}
        for core in cores.values():
            await asyncio.wrap_future(core.thread.load())
        found: dict[str, object] = {kind: await _rows(cores, *work, rows) for kind, work in KINDS.items()}
        speeds = [[await _together(core) for core in cores.values()] for _ in range(rounds)]
        if speeds:
            times = zip(
                *((thread / process for thread, process in zip(*both, strict=True)) for both in speeds), strict=True
            )
            names = "throughput of the process", "the same by processor time"
            found |= {name: _summary(each) for name, each in zip(names, times, strict=True)}
        for core in cores.values():
            await asyncio.to_thread(core.thread.close)
    return found


def _summary(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": round(statistics.median(ordered), 3), "least": round(ordered[0], 3)}


def _core(folder: str, model_id: str, *, chosen: bool) -> EngineCore:
    script = Path(folder) / "script.json"
    script.write_text('{"words_per_s": 0.1}')  # some three steps
    os.environ["FAKE_ENGINE_SCRIPT"] = str(script)
    settings = settings_module.load(_env_file=None, model_id=model_id, state_dir=folder, engine_process=chosen)
    build = remote.build if chosen else engine_core.build
    return build(settings, feature_list.resolve(settings), NOBODY)


async def _rows(cores: dict[str, EngineCore], audio_s: float, priority: Priority, rows: int) -> dict[str, object]:
    """Return milliseconds for a row by each core, in turns: until its answer, and of the event loop's thread."""
    audio, waits_ms, loop_ms = (
        _speech(audio_s),
        defaultdict[str, list[float]](list),
        defaultdict[str, list[float]](list),
    )
    for number in range(rows + 3):
        for name, core in cores.items():
            began_s, loop_s = time.monotonic(), time.thread_time()
            await EngineClient(core.thread).transcribe(Utterance(audio, session=f"s:{number}"), priority=priority)
            if number >= 3:
                waits_ms[name].append(1000 * (time.monotonic() - began_s))
                loop_ms[name].append(1000 * (time.thread_time() - loop_s))
    later_ms = [process - thread for thread, process in zip(waits_ms["thread"], waits_ms["process"], strict=True)]
    return {
        **{f"answer_ms, {name}": _summary(each) for name, each in waits_ms.items()},
        **{f"loop_ms, {name}": _summary(each) for name, each in loop_ms.items()},
        "later_ms": round(statistics.median(later_ms), 3),
    }


async def _together(core: EngineCore) -> tuple[float, float]:
    """Return the seconds for spans that come at once, and those of the processor."""
    engine, audio = EngineClient(core.thread), _speech(SPAN_S)
    began_s, processor_s = time.monotonic(), _processor_s(family(os.getpid()))
    spans = (engine.transcribe(Utterance(audio), priority=Priority.INTERACTIVE) for _ in range(SPANS))
    await asyncio.gather(*spans)
    return time.monotonic() - began_s, _processor_s(family(os.getpid())) - processor_s


def _speech(seconds: float) -> NDArray[np.float32]:
    # Not that of `engines`, which imports torch: the engine sets first how torch's threads wait.
    return np.resize(recordings.samples(), int(seconds * SAMPLE_RATE)).astype(np.float32) / 32768


def _processor_s(processes: list[int]) -> float:
    """Return the seconds that all threads of the processes have run (sched_schedstat, proc(5))."""
    total_ns = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9
