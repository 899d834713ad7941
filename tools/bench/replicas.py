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
from dataclasses import dataclass, replace
from pathlib import Path

from E2Etest import recordings
from E2Etest.process import Server
from E2Etest.replicas.rig import balanced
from tools.bench.gateway import pairs, request_ms
from tools.training.released_layout import random_checkpoint

ROUNDS = 2
LATENCY_ROUNDS = 200
# Of the 8 places of a server's batch 7 are for recordings: as many callers as fill the batches of two servers.
CALLERS = 14
ONE_THREAD = {
    "CPU_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MAX_BATCH": "8",
    "PRELOAD": "true",
    "IDLE_TIMEOUT": "0",
    "LOG_LEVEL": "INFO",
}


@dataclass(frozen=True)
class Load:
    """`clips` of `clip_s` seconds for a model. They are alike, so rows that begin together end together: a multiple of
    the callers leaves no server without work before the end."""

    model_id: str
    clip_s: float
    clips: int


def loads() -> dict[str, Load]:
    """Random weights answer each second of audio with up to 40 tokens, where speech has about 4: mostly decoding."""
    return {
        "0.6b_random": Load(str(random_checkpoint("0.6b")), 1, 2 * CALLERS),
        "demo": Load("demo", 4, 20 * CALLERS),
    }


def measure() -> dict[str, object]:
    """Clips per second, and milliseconds."""
    began = os.getloadavg()[0]
    return {
        "question": f"{CALLERS} callers at two servers on two cores against one on one core, MAX_BATCH=8",
        **{name: _throughput(load) for name, load in loads().items()},
        "request_3_s_wav_demo": _latency(),
        "load_average_before": began,
        "target": "1.7 times the throughput; 10 ms at p50",
    }


def _throughput(load: Load) -> dict[str, object]:
    settings = {"MODEL_ID": load.model_id, **ONE_THREAD}
    with tempfile.TemporaryDirectory() as folder, balanced(Path(folder), 2, **settings) as both:
        for core, server in enumerate(both.servers.values()):
            bind(server.process.pid, core)
        return throughput(load, next(iter(both.servers.values())), both)


def throughput(load: Load, one: Server, two: Server) -> dict[str, object]:
    """Transcribe the same clips at an address with one engine and at one with two, in turn."""
    alone: list[float] = []
    together: list[float] = []
    warm = replace(load, clips=CALLERS)
    for server in (one, two):
        _seconds(warm, server)
    for _ in range(ROUNDS):
        alone.append(_seconds(load, one))
        together.append(_seconds(load, two))
    return {
        "one_s": [round(seconds, 1) for seconds in alone],
        "two_s": [round(seconds, 1) for seconds in together],
        "two_clips_per_s": round(load.clips / min(together), 3),
        "times_the_throughput": round(sum(alone) / sum(together), 2),
    }


def _seconds(load: Load, server: Server) -> float:
    clip = recordings.wav(recordings.samples()[: int(load.clip_s * 16_000)])

    def ask(_: int) -> None:
        answer = server.transcribe(clip, model=load.model_id)
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(CALLERS) as pool:
        began = time.perf_counter()
        list(pool.map(ask, range(load.clips)))
        return time.perf_counter() - began


def _latency() -> dict[str, float]:
    """Send the same request to the balanced address and to a server of it, in turn."""
    with tempfile.TemporaryDirectory() as folder, balanced(Path(folder), 2, MODEL_ID="demo", **ONE_THREAD) as both:
        for server in both.servers.values():
            request_ms(server)
        return pairs(next(iter(both.servers.values())), both, request_ms, LATENCY_ROUNDS)


def bind(pid: int, core: int) -> None:
    """All threads of the process to one core; those that it starts later inherit it."""
    subprocess.run(
        ["taskset", "--all-tasks", "--cpu-list", "--pid", str(core), str(pid)], check=True, capture_output=True
    )
