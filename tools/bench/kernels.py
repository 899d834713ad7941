"""Which kernel multiplies fastest? The linear layers of the 0.6B's shape by number of rows, candidates in turns.

Each candidate has as many copies of a layer as the model has layers, so that weights come from memory as they do in a
decode step. `python -m tools.bench kernels` takes some minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from asr_server.engine.torch.linear import Int8Head, Int8Linear

ROWS = (1, 2, 4, 8, 13, 32, 104, 410, 832, 3300)
FEW_ROWS = 32  # to here every copy is timed: a decode step; beyond, three: weights are a small part of a pass
HEAD_ROWS = 64
ROUNDS = 7
# Inputs, outputs and the number of such layers.
SHAPES = {
    "qkv": (1024, 4096, 28),
    "o": (2048, 1024, 28),
    "gate_up": (1024, 6144, 28),
    "down": (3072, 1024, 28),
    "head": (1024, 151_936, 1),
    "encoder_qkv": (896, 2688, 18),
    "encoder_out": (896, 896, 18),
    "encoder_fc1": (896, 3584, 18),
    "encoder_fc2": (3584, 896, 18),
    "conv_out": (7680, 896, 1),
}
Layer = Callable[[torch.Tensor], torch.Tensor]


def _float32(weight: torch.Tensor) -> Layer:
    return lambda x: F.linear(x, weight)


def _bfloat16(weight: torch.Tensor) -> Layer:
    stored = weight.bfloat16()
    return lambda x: F.linear(x.bfloat16(), stored)


def _integers(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def _dynamic(engine: str) -> Callable[[torch.Tensor], Layer]:
    """torch's own dynamic layer: one scale for all rows of a pass."""

    def made(weight: torch.Tensor) -> Layer:
        torch.backends.quantized.engine = engine
        integers, scale = _integers(weight)
        zeros = torch.zeros(len(scale), dtype=torch.long)
        packed = torch.ops.quantized.linear_prepack(
            torch._make_per_channel_quantized_tensor(integers, scale.double(), zeros, 0), None
        )
        return lambda x: torch.ops.quantized.linear_dynamic(x, packed)

    return made


def _int_mm(weight: torch.Tensor) -> Layer:
    """Plain products of integers, a scale for each row, nothing packed."""
    integers, scale = _integers(weight)
    transposed, scale = integers.t(), scale / 127

    def layer(x: torch.Tensor) -> torch.Tensor:
        largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True)
        return torch._int_mm((x * (127 / largest)).round_().to(torch.int8), transposed) * largest * scale

    return layer


def _weights_only(weight: torch.Tensor) -> Layer:
    """8-bit weights, activations in bfloat16."""
    integers, scale = _integers(weight)
    scale = scale.bfloat16()
    return lambda x: torch._weight_int8pack_mm(x.bfloat16(), integers, scale)


CANDIDATES: dict[str, Callable[[torch.Tensor], Layer]] = {
    "float32": _float32,
    "bfloat16": _bfloat16,
    "ours": Int8Linear,
    "dynamic_fbgemm": _dynamic("fbgemm"),
    "dynamic_onednn": _dynamic("onednn"),
    "int_mm": _int_mm,
    "weights_only": _weights_only,
}


@torch.inference_mode()
def measure() -> dict[str, object]:
    """Microseconds a layer, the least of some rounds, by shape, rows and candidate."""
    torch.manual_seed(0)
    table = {name: _shape(name) for name in SHAPES}
    return {
        "question": "microseconds of one linear layer of the 0.6B's shape, by rows and kernel",
        "threads": torch.get_num_threads(),
        "us": table,
        "step_ms": {rows: _step_ms(table, rows) for rows in ROWS if rows <= FEW_ROWS},
        "target": "a decode step alone 30 ms, of eight rows 60 ms; prefill of 410 tokens 1.5 s",
    }


def _shape(name: str) -> dict[int, dict[str, int]]:
    inputs, outputs, copies = SHAPES[name]
    weight = torch.randn(outputs, inputs) * 0.02
    made = {key: [make(weight) for _ in range(copies)] for key, make in CANDIDATES.items()}
    if name == "head":
        made["ours"] = [Int8Head(weight.bfloat16())]
    return {rows: _timed(made, torch.randn(rows, inputs)) for rows in ROWS if name != "head" or rows <= HEAD_ROWS}


def _timed(made: dict[str, list[Layer]], x: torch.Tensor) -> dict[str, int]:
    best = dict.fromkeys(made, float("inf"))
    for _ in range(ROUNDS):
        for key, layers in made.items():
            if key == "weights_only" and len(x) > FEW_ROWS:
                continue  # ten times as slow as the others
            timed = layers if len(x) <= FEW_ROWS else layers[:3]
            began = time.perf_counter()
            for layer in timed:
                layer(x)
            best[key] = min(best[key], (time.perf_counter() - began) / len(timed))
    return {key: round(1e6 * seconds) for key, seconds in best.items() if seconds < float("inf")}


def _step_ms(table: dict[str, dict[int, dict[str, int]]], rows: int) -> dict[str, float]:
    """All linear layers of a decode step."""
    names = ("qkv", "o", "gate_up", "down", "head")
    return {key: round(sum(table[n][rows][key] * SHAPES[n][2] for n in names) / 1000, 1) for key in CANDIDATES}
