"""What do many callers gain by sharing the batch? 16 clips of 5 s together against one at a time."""

from __future__ import annotations

import time

from asr_server.engine.protocol import Utterance
from tools.bench import engines
from tools.checkpoints.recogniser import random_checkpoint

CALLERS = 16
CLIP_S = 5
ROUNDS = 3


def measure() -> dict[str, object]:
    """Throughput ratio and the latency of the slowest callers, on the 0.6B shape and on the demo model."""
    return {
        "question": f"{CALLERS} callers with {CLIP_S} s clips, together against one at a time",
        "0.6b_random": _measure(str(random_checkpoint("0.6b")), rounds=1),
        "demo": _measure("demo", rounds=ROUNDS),
        "target": "at least 4 times the throughput",
    }


def _measure(model_id: str, rounds: int) -> dict[str, float]:
    engine = engines.load(model_id, max_batch=CALLERS)
    clips = [Utterance(engines.speech(CLIP_S)) for _ in range(CALLERS)]
    together, alone, latencies = [], [], []
    with engines.forced_answers():
        engines.run(engine, clips[:1])
        for _ in range(rounds):
            began = time.perf_counter()
            _, done_s = engines.run(engine, clips)
            together.append(time.perf_counter() - began)
            latencies += done_s
            began = time.perf_counter()
            for clip in clips:
                engines.run(engine, [clip])
            alone.append(time.perf_counter() - began)
    return {
        "together_s": round(min(together), 3),
        "one_at_a_time_s": round(min(alone), 3),
        "times_the_throughput": round(min(alone) / min(together), 2),
        "p95_latency_together_s": round(sorted(latencies)[int(0.95 * len(latencies))], 3),
        "mean_latency_in_line_s": round(min(alone) / 2, 3),
    }
