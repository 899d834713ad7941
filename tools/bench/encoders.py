"""Which encoder is the fastest? Torch's in each format and ONNX Runtime's, on the released 0.6B's shape, in turns.

Random weights; the files are exported on the first run and kept beside the checkpoint, which takes a minute each.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from asr_server.engine import capabilities
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.windows import Encoder
from asr_server.features.encoders import onnx_export
from asr_server.features.encoders.exported_encoder import OnnxEncoder, Target
from tools.checkpoints.recogniser import random_checkpoint

ROUNDS = 5
# Of 8 s in one call: a live partial, a window, half a minute.
FRAMES = {"2 s": 200, "8 s": 800, "30 s": 3000}


@torch.inference_mode()
def measure() -> dict[str, object]:
    """Milliseconds of a clip, the least of some rounds: on the clock, and of all cores together."""
    directory, threads = random_checkpoint("0.6b"), capabilities.probe().cpu.threads
    torch.set_num_threads(threads)
    made = _encoders(directory, threads)
    clock, cpu = ({name: dict.fromkeys(FRAMES, float("inf")) for name in made} for _ in range(2))
    for _ in range(ROUNDS):
        for clip, frames in FRAMES.items():
            for name, encoder in made.items():
                windows = encoder.windows(torch.rand(128, frames) * 2 - 1)
                began, cpu_began = time.perf_counter(), time.process_time()
                encoder(windows)
                clock[name][clip] = min(clock[name][clip], time.perf_counter() - began)
                cpu[name][clip] = min(cpu[name][clip], time.process_time() - cpu_began)
    return {
        "question": "milliseconds of the encoder, released 0.6B's shape, random weights, by length of the clip",
        "threads": threads,
        "ms": _rounded(clock),
        "cpu_ms": _rounded(cpu),
    }


def _rounded(seconds: dict[str, dict[str, float]]) -> dict[str, dict[str, int]]:
    return {name: {clip: round(1000 * s) for clip, s in row.items()} for name, row in seconds.items()}


def _encoders(directory: Path, threads: int) -> dict[str, Encoder]:
    found: dict[str, Encoder] = {}
    for name, dtype in (
        ("torch float32", torch.float32),
        ("torch bfloat16", torch.bfloat16),
    ):
        tower = loading.load(directory, device="cpu", dtype=dtype).tower
        found[name] = WindowedEncoder(tower)
    target = Target(torch.device("cpu"), torch.bfloat16, threads)
    for name, int8 in (("onnx float32", False), ("onnx int8", True)):
        file = directory.with_name(f"{directory.name}-{name.replace(' ', '-')}.onnx")
        if not file.exists():
            onnx_export.export(directory, file, int8=int8)
        tower = loading.load(directory, device="cpu", dtype=torch.bfloat16).tower
        found[name] = OnnxEncoder(file, tower, target)
    return found
