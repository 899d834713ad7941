"""What does a cluster with two engine replicas give, against one plain server on one core, and what does it add to a
request?

Both run side by side and are asked in turn. Ray, the app and the clients take time of the same cores as the engines.
Needs `make .venv/.cluster`, `taskset` and two cores with nothing else to do.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from E2Etest.cluster import process
from E2Etest.process import ServerProcess, fake_model, ready
from tools.bench.gateway import live, pairs, refused_ms, request_ms
from tools.bench.replicas import CALLERS, LATENCY_ROUNDS, ONE_THREAD, bind, loads, throughput


def measure() -> dict[str, object]:
    """Milliseconds, and clips per second."""
    began = os.getloadavg()[0]
    figures: dict[str, object] = latency()
    for name, load in loads().items():
        with _side_by_side(MODEL_ID=load.model_id) as (plain, cluster):
            bind(plain.process.pid, 0)
            figures[name] = throughput(load, plain, cluster)
    return {
        "question": f"{CALLERS} callers at a cluster of two replicas against one server on one core, MAX_BATCH=8",
        **figures,
        "load_average_before": began,
        "target": "10 ms at p50; 1.7 times the throughput",
    }


def latency() -> dict[str, object]:
    """With the demonstration model; and with the scripted engine, which takes the same time for the same words, so that
    the difference is that of the way."""
    with _side_by_side(MODEL_ID="demo") as (plain, cluster):
        figures: dict[str, object] = {
            "request_3_s_wav_demo": pairs(plain, cluster, request_ms, LATENCY_ROUNDS),
            "upload_that_is_refused": pairs(plain, cluster, refused_ms, LATENCY_ROUNDS),
            "live_message": live(plain, cluster),
        }
    with (
        tempfile.TemporaryDirectory() as folder,
        _side_by_side(**fake_model(Path(folder), text="turn on the lights", language="English")) as (plain, cluster),
    ):
        return {**figures, "request_3_s_wav_scripted": pairs(plain, cluster, request_ms, LATENCY_ROUNDS)}


@contextmanager
def _side_by_side(**settings: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """A plain server and a cluster, both with their model loaded. The cluster keeps its models by itself."""
    of_cluster = {name: value for name, value in ONE_THREAD.items() if name != "PRELOAD"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "plain" / "log"
        log.parent.mkdir()
        with (
            ready(log, **ONE_THREAD, SPEECH="off", SPEAKERS="off", **settings) as plain,
            process.running(Path(folder) / "log", **of_cluster, **settings) as cluster,
        ):
            yield plain, cluster
