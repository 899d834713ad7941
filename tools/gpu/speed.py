"""Measures the times of loads, passes and answers, on random weights of a released shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from unittest import mock

import torch

from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.engine import QwenEngine
from asr_server.engine.torch import passes
from tools.bench import engines, live_step
from tools.gpu import agreement
from tools.gpu.rig import Rig

CLIP_S = 30
BATCHES = (1, 8, 32, 64, 128)
_PROFILED, _LINES = 32, 25
_STEPS = 20


def throughput(rig: Rig) -> dict[str, object]:
    """Seconds of audio per second with so many callers at once, each with a span and an answer of its length."""
    return _callers(rig, _some(rig))


def _some(rig: Rig) -> Sequence[int]:
    return BATCHES if rig.device != "cpu" else (1, 2)


def _callers(rig: Rig, counts: Sequence[int]) -> dict[str, object]:
    clip_s = CLIP_S if rig.shape != "demo" else 5
    found: dict[str, object] = {"span_s": clip_s}
    engine = rig.engine(rig.model_id, max_batch=max(counts))
    engine.load()
    with engines.forced_answers():
        for callers in counts:
            works = [Utterance(engines.speech(clip_s)) for _ in range(callers)]
            engines.run(engine, works)
            _, done_s = engines.run(engine, works)
            found[f"{callers}_callers"] = {
                "audio_s_per_s": round(callers * clip_s / max(done_s), 1),
                "last_answer_s": round(max(done_s), 3),
            }
    engine.unload()
    return found


def beside_package(rig: Rig) -> dict[str, object]:
    """Seconds for spans that come at once, and for the same in one call of the package, which makes a batch of them."""
    from tools.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    clip_s = CLIP_S if rig.shape != "demo" else 5
    clip, tokens = engines.speech(clip_s), engines.forced_tokens(clip_s * engines.RATE)
    engine = rig.engine(rig.model_id)
    engine.load()
    ours_s = {}
    with engines.forced_answers():
        for rows in (1, 8):
            works = [Utterance(clip, language="English")] * rows
            engines.run(engine, works)
            ours_s[rows] = max(engines.run(engine, works)[1])
    directory, dtype = engine._locate(), getattr(torch, engine.info.dtype)
    engine.unload()
    model = Qwen3ASRForConditionalGeneration.from_pretrained(directory, dtype=dtype).eval().to(rig.device)
    processor = Qwen3ASRProcessor.from_pretrained(directory, local_files_only=True)
    found: dict[str, object] = {"span_s": clip_s, "dtype": engine.info.dtype}
    for rows, own_s in ours_s.items():
        prompt = agreement.package_prompt(processor)
        took_s = []
        for _ in range(2):
            began = time.perf_counter()
            inputs = processor(text=[prompt] * rows, audio=[clip] * rows, return_tensors="pt", padding=True)
            inputs = inputs.to(model.device, dtype)
            with torch.inference_mode():
                model.generate(**inputs, max_new_tokens=tokens, min_new_tokens=tokens, pad_token_id=0)
            rig.synchronize()
            took_s.append(time.perf_counter() - began)
        found[f"{rows}_spans"] = {
            "ours_s": round(own_s, 3),
            "package_s": round(min(took_s), 3),
            "times_faster": round(min(took_s) / own_s, 1),
        }
    return found


def live_partial(rig: Rig) -> dict[str, object]:
    """Milliseconds of a partial at every length of a session, and of two speakers at once."""
    return live_step.measure(rig.model_id, rig.device)


def step(rig: Rig) -> dict[str, object]:
    """A decode step, with the server's kernels and without, against the time in which the device can read the weights
    that it needs once; and what the device does in it."""
    bytes_per_s = _bandwidth(rig)
    found: dict[str, object] = {"device_gb_per_s": round(bytes_per_s / 1e9, 1)}
    for name, fuse in (("recorded", "auto"), ("without_kernels", "none")):
        engine = rig.engine(rig.model_id, max_batch=max(_some(rig)), fuse=fuse)
        engine.load()
        runtime = engine.runtime
        assert runtime is not None
        layers = runtime.decoder.model._layers
        matrices = [
            linear.keywords["weight"]
            for layer in layers
            for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)
        ]
        weights_bytes = runtime.decoder._head.weight.nbytes + sum(matrix.nbytes for matrix in matrices)
        floor_ms = 1000 * weights_bytes / bytes_per_s
        found["weights_mb"], found["floor_ms"] = weights_bytes // 2**20, round(floor_ms, 3)
        timed = {}
        for rows in (rows for rows in _some(rig) if rows <= runtime.capacity.rows):
            took_ms = step_ms(rig, engine, rows)
            timed[f"{rows}_rows"] = {"step_ms": round(took_ms, 3), "times_the_floor": round(took_ms / floor_ms, 1)}
        found[name], found[f"{name}_profile"] = timed, _profile(rig, engine)
        engine.unload()
    return found


def small_model(rig: Rig) -> dict[str, object]:
    """Steps and throughput of the 0.6B."""
    small = Rig(rig.device, "0.6b") if rig.shape != "demo" else rig
    return {"step_over_bandwidth": step(small), "throughput": throughput(small)}


def _profile(rig: Rig, engine: QwenEngine) -> list[str]:
    """Return the kernels of a few steps that take the most time, as lines of a table."""
    kinds = torch.profiler.ProfilerActivity
    on_cpu = rig.device == "cpu"
    with torch.profiler.profile(activities=[kinds.CPU, *[kinds.CUDA] * (not on_cpu)]) as profile:
        step_ms(rig, engine, min(_PROFILED, max(_some(rig))), steps=4)
    order = "self_cpu_time_total" if on_cpu else "self_device_time_total"
    table = profile.key_averages().table(sort_by=order, row_limit=_LINES, max_name_column_width=60)
    return [line.rstrip() for line in table.splitlines()]


# Ways to compute between the products of a layer, by the values of FUSE.
_OPERATIONS = {"torch": "none", "torch_compile": "compile", "fused_kernels": "kernels"}


def operations(rig: Rig) -> dict[str, object]:
    """A decode step with each kind of small operations, and of attention; kernels of the server need a GPU."""
    found: dict[str, object] = {}
    for name, fuse in _OPERATIONS.items():
        if rig.device != "cpu" or name != "fused_kernels":
            found[name] = _steps(rig, fuse)
    with mock.patch.object(passes, "variable_length_problem", return_value="padded rows are measured"):
        found["torch_with_padded_attention"] = _steps(rig, "auto")
    return found


def _steps(rig: Rig, fuse: str) -> dict[str, object]:
    engine = rig.engine(rig.model_id, max_batch=max(_some(rig)), fuse=fuse)
    began = time.perf_counter()
    engine.load()
    timed: dict[str, object] = {"load_s": round(time.perf_counter() - began, 1)}
    rows = [rows for rows in _some(rig) if rows <= engine.info.slots]
    timed |= {f"{count}_rows_ms": round(step_ms(rig, engine, count), 3) for count in rows}
    engine.unload()
    return timed


def step_ms(rig: Rig, engine: QwenEngine, rows: int, steps: int = _STEPS) -> float:
    """The median of steps in which all rows decode one token each."""
    with engines.forced_answers():
        for key in range(rows):
            engine.admit(key, Utterance(engines.speech(10)))
        runtime = engine.runtime
        assert runtime is not None
        while len(runtime.decoder.decoding) < rows:
            list(engine.step())
        took = []
        for _ in range(steps):
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
