"""The host's work in a decode step is measured beside a device that takes no time, and beside one that takes some
milliseconds: how long does that one wait for the host?

Steps are recorded by a recorder that replays nothing: it writes tokens that were drawn before. All else is the
product: the engine's thread, the engine, rows, layouts, transfers. On a GPU an operation of torch outside of what is
recorded is a launch or a transfer, and the launch of a graph takes some microseconds more.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import decoder
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.torch import memory
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.passes import Computed
from asr_server.schedule.job import Job
from asr_server.schedule.thread import EngineThread
from tools.bench import engines

ROWS, STEPS = (1, 8, 32, 64), 250
# What a step takes a device in the second part: on an H100 one of 32 rows of the 1.7B shape should take 2.8.
DEVICE_MS, BUSY_ROWS = 2.8, 32
# Tokens come back as often as words do in speech: about every fourth is among the 64 before it.
_VOCABULARY = 200
# Operations that only view what is there.
_FREE = frozenset(("view", "slice", "select", "split", "detach", "alias", "lift_fresh", "resolve_conj", "resolve_neg"))


class NullDevice:
    """A recorder of passes whose replays take no time of the host. Implements `engine.torch.passes.Capture`.

    `step_s`: what a replay takes the device, which makes one after the other.
    """

    def __init__(self) -> None:
        self._tokens = np.random.default_rng(5).integers(100, 100 + _VOCABULARY, STEPS + max(ROWS))
        self._replays = 0
        self.step_s = 0.0
        self._ends_s = 0.0
        self.idle_s = 0.0  # the time that it has had nothing to do

    def __call__(self, run: Callable[[], Computed]) -> tuple[Callable[[], None], Computed]:
        """Run once, for what the results look like."""
        computed = run()
        chosen = computed[1].numpy()

        def replay() -> None:
            self._replays += 1
            first = self._replays % STEPS
            chosen[:, 0] = np.resize(self._tokens[first:], len(chosen))
            now_s = time.perf_counter()
            self.idle_s += max(0.0, now_s - self._ends_s)
            self._ends_s = max(now_s, self._ends_s) + self.step_s

        return replay, computed

    def download(self, tensor: torch.Tensor) -> Callable[[], list[Any]]:
        """Return what waits for the replays so far, as `engine.torch.memory.download` does."""
        numbers, ends_s = tensor.clone().tolist, self._ends_s

        def wait() -> list[Any]:
            time.sleep(max(0.0, ends_s - time.perf_counter()))
            return numbers()

        return wait


class Operations(TorchDispatchMode):
    """Counts operations that compute or copy, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch."""
        if (name := func.overloadpacket.__name__) not in _FREE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def measure() -> dict[str, object]:
    """Microseconds of rounds of the engine's thread, operations of a step, and what its attention reads, by rows; then
    rounds beside a device that is busy, with and without steps that are launched ahead."""
    engine = engines.load("demo", runtime="torch", max_batch=max(ROWS), kv_budget_mb=2_000, quantize="none")
    runtime = engine._runtime
    assert runtime is not None
    device = NullDevice()
    with torch.inference_mode():
        recorded = runtime.decoder.record(device, lambda: None)
    return {
        "question": "Microseconds of the host beside a device that takes no time, demonstration model, 30 s of audio",
        "recorded": recorded,
        **{f"{rows}_rows": _measured(engine, rows) for rows in ROWS},
        f"{BUSY_ROWS}_rows_beside_steps_of_{DEVICE_MS}_ms": _beside_busy(engine, device),
        "target": "a step of 32 rows at most 200",
    }


def _seated(engine: QwenEngine, rows: int) -> tuple[EngineThread, list[Job[object]], list[object]]:
    """Return a thread whose rows decode, their jobs, and the list that gets what they say."""
    thread = EngineThread(engine, idle_timeout_s=0, start=False)
    audio, received = engines.speech(engines.SPAN_S), list[object]()
    jobs = [Job[object](Utterance(audio), on_delta=received.append) for _ in range(rows)]
    for job in jobs:
        thread.submit(job)
    while len(engine._runtime.decoder.decoding) < rows:
        thread.turn()
    return thread, jobs, received


def _beside_busy(engine: QwenEngine, device: NullDevice) -> dict[str, object]:
    found = dict[str, object]()
    for name in ("ahead", "one_by_one"):
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(memory, "download", device.download))
            if name == "one_by_one":
                patches.enter_context(mock.patch.object(decoder.ArenaDecoder, "_launch_after", return_value=None))
            thread, jobs, received = _seated(engine, BUSY_ROWS)
            device.step_s, took, idle = DEVICE_MS / 1e3, list[float](), list[float]()
            for _ in range(STEPS):
                received.clear()
                began_s, idle_s = time.perf_counter(), device.idle_s
                thread.turn()
                took.append(1e6 * (time.perf_counter() - began_s))
                idle.append(1e6 * (device.idle_s - idle_s))
            device.step_s = 0.0
            for job in jobs:
                job.future.cancel()
            thread.turn()
        found[name] = {"round": _figures(took[1:]), "device_idle": _figures(idle[1:])}
    return found


def _measured(engine: QwenEngine, rows: int) -> dict[str, object]:
    thread, jobs, received = _seated(engine, rows)
    runtime = engine._runtime
    assert runtime is not None
    operations, took, own = Operations(), list[float](), list[float]()
    for number in range(STEPS):
        received.clear()
        began_s = time.perf_counter()
        if number % 2:
            thread.turn()
            took.append(1e6 * (time.perf_counter() - began_s))
        else:
            list(engine.step())
            own.append(1e6 * (time.perf_counter() - began_s))
    with operations:
        list(engine.step())
    decoding = runtime.decoder.decoding
    assert len(decoding) == rows, "some have ended"
    held = sum(row.length for row in decoding)
    shape = runtime.decoder._shapes.step([TokenSpan(row.places.start, row.length, 1) for row in decoding])
    for job in jobs:
        job.future.cancel()
    thread.turn()
    return {
        "round": _figures(took),
        "of_it_the_engine": _figures(own),
        "operations": dict(operations.counts),
        "columns_read": shape.rows * shape.width,
        "tokens_held": held,
    }


def _figures(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 1), "least": round(min(values), 1)}
