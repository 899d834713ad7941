"""What do two servers behind a load balancer give, each on a core of its own, and what does the balancer add?

The throughput is that of concurrent clips at one server on one core, then at two on two cores, in turn. HAProxy and the
clients take time of the same cores in both cases. Needs HAProxy, `taskset` and two cores with nothing else to do.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asr_training.released_layout import random_checkpoint
from E2Etest import recordings
from E2Etest.bench.gateway import pairs, request_ms
from E2Etest.process import Server
from E2Etest.replicas.rig import balanced

CALLERS, CLIPS, CLIP_S, ROUNDS = 8, 24, 5, 3
LATENCY_ROUNDS = 200
ONE_THREAD = {"OMP_NUM_THREADS": "1", "PRELOAD": "true", "IDLE_TIMEOUT": "0", "LOG_LEVEL": "INFO"}


def measure() -> dict[str, object]:
    """Clips per second, and milliseconds."""
    return {
        "question": f"{CALLERS} callers with clips of {CLIP_S} s at two servers on two cores against one on one core",
        "0.6b_random": _throughput(str(random_checkpoint("0.6b"))),
        "request_3_s_wav_demo": _latency(),
        "load_average_before": os.getloadavg()[0],
        "target": "1.7 times the throughput; 10 ms at p50",
    }


def _throughput(model_id: str) -> dict[str, float]:
    clip = recordings.wav(recordings.samples()[: CLIP_S * 16_000])
    with tempfile.TemporaryDirectory() as folder, balanced(Path(folder), 2, MODEL_ID=model_id, **ONE_THREAD) as both:
        for core, server in enumerate(both.servers.values()):
            _bind(server.process.pid, core)
        alone: list[float] = []
        together: list[float] = []
        first = next(iter(both.servers.values()))
        for _ in range(ROUNDS):
            alone.append(_clips_per_s(first, clip, model_id))
            together.append(_clips_per_s(both, clip, model_id))
    return {
        "one_per_s": round(max(alone), 3),
        "two_per_s": round(max(together), 3),
        "times_the_throughput": round(max(together) / max(alone), 2),
    }


def _clips_per_s(server: Server, clip: bytes, model_id: str) -> float:
    def ask(_: int) -> None:
        answer = server.transcribe(clip, model=model_id)
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(CALLERS) as pool:
        began = time.perf_counter()
        list(pool.map(ask, range(CLIPS)))
        return CLIPS / (time.perf_counter() - began)


def _latency() -> dict[str, float]:
    """The same request at the balanced address and at a server of it, in turn."""
    with tempfile.TemporaryDirectory() as folder, balanced(Path(folder), 2, MODEL_ID="demo", **ONE_THREAD) as both:
        for server in both.servers.values():
            request_ms(server)
        return pairs(next(iter(both.servers.values())), both, request_ms, LATENCY_ROUNDS)


def _bind(pid: int, core: int) -> None:
    """All threads of the process to one core; those that it starts later inherit it."""
    subprocess.run(
        ["taskset", "--all-tasks", "--cpu-list", "--pid", str(core), str(pid)], check=True, capture_output=True
    )
