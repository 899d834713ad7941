"""What does fusing small operations by torch.compile gain? Two engines in one process, their steps in turns."""

from __future__ import annotations

import statistics
import time

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from tools.bench import engines
from tools.checkpoints.recogniser import random_checkpoint

ROUNDS, STEPS = 9, 5
ROWS = (1, 8)


def measure(model_id: str = "") -> dict[str, object]:
    """Seconds to load, and milliseconds of a step; by default of random weights of the 0.6B's shape."""
    model_id = model_id or str(random_checkpoint("0.6b"))
    found: dict[str, object] = {"question": "Steps with FUSE=compile and FUSE=none"}
    loaded = {}
    for name, fuse in (("plain", "none"), ("fused", "compile")):
        began = time.perf_counter()
        loaded[name] = engines.load(model_id, max_batch=max(ROWS), runtime="torch", fuse=fuse)
        found[f"load_{name}_s"] = round(time.perf_counter() - began, 1)
    with engines.forced_answers():
        for rows in ROWS:
            found[f"{rows}_rows"] = _compared(loaded, rows)
    return found


def _compared(loaded: dict[str, QwenEngine], rows: int) -> dict[str, object]:
    took: dict[str, list[float]] = {name: [] for name in loaded}
    for engine in loaded.values():
        for key in range(rows):
            engine.admit(key, Utterance(engines.speech(25)))
        while engine.runtime is not None and len(engine.runtime.decoder.decoding) < rows:
            list(engine.step())
    for _ in range(ROUNDS):
        for name, engine in loaded.items():
            for _ in range(STEPS):
                began = time.perf_counter()
                list(engine.step())
                took[name].append(1000 * (time.perf_counter() - began))
    for engine in loaded.values():
        for key in range(rows):
            engine.drop(key)
    medians = {name: statistics.median(own) for name, own in took.items()}
    share = round(medians["fused"] / medians["plain"], 3)
    return {**{f"{name}_ms": round(value, 2) for name, value in medians.items()}, "fused_over_plain": share}
