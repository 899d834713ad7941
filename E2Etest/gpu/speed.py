"""How long loads, passes and answers take, on random weights of a released shape."""

from __future__ import annotations

import statistics
import time
from unittest import mock

import torch

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen.engine import QwenEngine
from E2Etest.bench import engines
from E2Etest.gpu.rig import Rig

CLIP_S = 30
BATCHES = (1, 8, 32)
_STEPS = 20


def load(rig: Rig) -> dict[str, object]:
    """Seconds of a first load in this process, with the imports, of a second one, and of its first passes."""
    engine, warm_s = rig.engine(rig.model_id), []
    warm_up = QwenEngine._warm_up

    def timed(self: QwenEngine, runtime: object) -> None:
        began = time.perf_counter()
        warm_up(self, runtime)
        rig.synchronize()
        warm_s.append(time.perf_counter() - began)

    took_s = []
    with mock.patch.object(QwenEngine, "_warm_up", timed):
        for _ in range(2):
            began = time.perf_counter()
            engine.load()
            took_s.append(time.perf_counter() - began)
            info = engine.info
            engine.unload()
    options = {option.name: f"{option.value}: {option.reason}" for option in info.options}
    return {
        "first_s": round(took_s[0], 2),
        "second_s": round(took_s[1], 2),
        "warm_up_s": [round(took, 2) for took in warm_s],
        "dtype": info.dtype,
        "decided": options,
    }


def throughput(rig: Rig) -> dict[str, object]:
    """Seconds of audio per second with so many callers at once, each with a span and an answer of its length."""
    clip_s = CLIP_S if rig.shape != "demo" else 5
    found: dict[str, object] = {"span_s": clip_s}
    engine = rig.engine(rig.model_id, max_batch=max(BATCHES))
    engine.load()
    with engines.forced_answers():
        for callers in BATCHES if rig.device != "cpu" else BATCHES[:2]:
            works = [Utterance(engines.speech(clip_s)) for _ in range(callers)]
            engines.run(engine, works)
            _, done_s = engines.run(engine, works)
            found[f"{callers}_callers"] = {
                "audio_s_per_s": round(callers * clip_s / max(done_s), 1),
                "last_answer_s": round(max(done_s), 3),
            }
    engine.unload()
    return found


def step(rig: Rig) -> dict[str, object]:
    """A decode step against the time in which the device can read the language model's weights once."""
    engine = rig.engine(rig.model_id, max_batch=max(BATCHES))
    engine.load()
    runtime = engine._runtime
    assert runtime is not None
    parts = runtime._parts
    weights = {w.data_ptr(): w.nbytes for module in (parts.text, parts.head) for w in module.parameters()}
    bytes_per_s = _bandwidth(rig)
    floor_ms = 1000 * sum(weights.values()) / bytes_per_s
    found: dict[str, object] = {
        "weights_mb": sum(weights.values()) // 2**20,
        "device_gb_per_s": round(bytes_per_s / 1e9, 1),
        "floor_ms": round(floor_ms, 3),
    }
    for rows in BATCHES:
        if rows > runtime.capacity.rows:
            continue
        took_ms = _step_ms(rig, engine, rows)
        found[f"{rows}_rows"] = {"step_ms": round(took_ms, 3), "times_the_floor": round(took_ms / floor_ms, 1)}
    engine.unload()
    return found


def _step_ms(rig: Rig, engine: QwenEngine, rows: int) -> float:
    """The median of steps in which all rows decode one token each."""
    with engines.forced_answers():
        for key in range(rows):
            engine.admit(key, Utterance(engines.speech(10)))
        runtime = engine._runtime
        assert runtime is not None
        while len(runtime.decoder.rows) < rows:
            list(engine.step())
        took = []
        for _ in range(_STEPS):
            rig.synchronize()
            began = time.perf_counter()
            list(engine.step())
            rig.synchronize()
            took.append(1000 * (time.perf_counter() - began))
        for key in range(rows):
            engine.drop(key)
    return statistics.median(took)


def _bandwidth(rig: Rig) -> float:
    """Bytes per second that a copy on the device reads."""
    size = 2**30 if rig.device != "cpu" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=rig.device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(8):
        rig.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        rig.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size / best  # it writes as much as it reads
