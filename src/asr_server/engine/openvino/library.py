"""The compiler's settings for this processor, and the matrices of a checkpoint for graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.openvino import few_bits
from asr_server.engine.openvino.few_bits import Integers, Kept
from asr_server.engine.openvino.text_graph import Matrix, Parts, own_format
from asr_server.engine.protocol import Option
from asr_server.engine.weights import StoredWeights, Weight

# Kernels that are cached by the shapes of passes, for all layers together: steps have some two hundred, and each length
# of a prompt adds a few. The default of 5,000 took 400 MB after 3,000 passes of random lengths, and was still growing.
_PRIMITIVES = 512
# Activations that share a scale in integer products. With 32, the library's default, a prompt of 410 tokens has 0.73 of
# the speed (VNNI, two cores, 2026-11-26); with 1,024 it is hardly faster.
_GROUP = 128
# Input rows and outputs for the comparison of a matrix.
_ROWS, _OUTPUTS = 16, 512


@dataclass(frozen=True, slots=True)
class NumberFormats:
    """The number formats that a model computes in, and its threads.

    With integer matrices, keys and values are also in 8 bits. Products are in integers if the processor can, else in
    float32. Only the layers of the language model have 4 bits: its head, the embeddings and the encoder have 8.
    """

    bits: int  # 8 or 4 for integer matrices; 0 for the checkpoint's own format
    bfloat16: bool  # activations are in bfloat16, if the matrices are not integers
    threads: int  # 0 leaves the number to the library

    def compiled(self, graph: ov.Model, *, convolves: bool = False) -> ov.CompiledModel:
        """Compile a graph for this processor.

        `convolves`: most of its work is not in matrices, so that bfloat16 activations pay even if these are in 8 bits.
        """
        kind = ov.Type.bf16 if self.bfloat16 and (convolves or not self.bits) else ov.Type.f32
        chosen = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": kind,
            "KV_CACHE_PRECISION": ov.Type.u8 if self.bits else kind,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP,
            "CPU_RUNTIME_CACHE_CAPACITY": _PRIMITIVES,
            "ENABLE_CPU_PINNING": False,  # the system or NUMA_NODE places the threads
            **({"INFERENCE_NUM_THREADS": self.threads} if self.threads else {}),
        }
        return ov.Core().compile_model(graph, "CPU", chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """The matrices of a checkpoint in a number format. Must outlive the graphs that are made of them."""

    matrix: Matrix
    options: tuple[Option, ...]  # facts about integer matrices, as an option of the plan
    kept: Kept  # weights as integers


def matrices(
    weights: StoredWeights,
    parts: Parts,
    formats: NumberFormats,
    directory: Path,
    state_dir: Path | None,
    on_progress: Callable[[float], None],
    *,
    few: Collection[str] = (),
) -> Matrices:
    """Return the matrices whose weights `parts` names; `few`: the matrices that may be in 4 bits.

    Integer matrices are kept in `state_dir`, by `directory`, the checkpoint's. `on_progress` is called while they are
    made, with the share that is done. Raises `ModelUnavailable` if weights are missing.
    """
    missing = [name for names in parts.values() for name in names if name not in weights]
    if missing:
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {missing[0]}."
        )

    def given(name: str) -> list[Weight]:
        return [weights[one] for one in parts[name]]

    if not formats.bits:
        return Matrices(lambda name: own_format(given(name)), (), Kept({}, {}))

    def make() -> few_bits.Made:
        converted, largest = dict[str, Integers](), 0.0
        for number, name in enumerate(parts):
            on_progress(number / len(parts))
            layer = formats.bits == 4 and name in few
            converted[name] = few_bits.converted(given(name), few_bits.halves if layer else few_bits.integers)
            largest = max(largest, _difference(formats, given(name)[0], converted[name]))
            weights.release()
        return converted, {"matrices": len(converted), "largest_difference": largest}

    kept = few_bits.kept(state_dir, directory, make, formats.bits)
    count, largest = kept.facts["matrices"], kept.facts["largest_difference"]
    reason = f"the outputs of {count} layers differ by at most {largest:.1%} from those of the layers they replace"
    return Matrices(
        lambda name: few_bits.node(kept.matrices[name]), (Option("quantize", True, f"int{formats.bits}", reason),), kept
    )


def _difference(formats: NumberFormats, weight: Weight, made: Integers) -> float:
    """Compare some outputs of an integer matrix with the exact ones, on random inputs. `weight`: the first weight of
    the matrix. Return the norm of the difference over the norm of the exact outputs."""
    step = -(-weight.shape[0] // _OUTPUTS)
    noise = np.random.default_rng(0).standard_normal((_ROWS, weight.shape[1]), np.float32)
    exact = noise @ Weight(weight.numbers[::step], weight.format).floats().T
    some: Any = tuple(np.ascontiguousarray(part[: weight.shape[0] : step]) for part in made)
    x = ops.parameter([-1, noise.shape[1]], ov.Type.f32)
    graph = ov.Model([ops.matmul(x, few_bits.node(some), False, True)], [x], "product")
    found = formats.compiled(graph)(noise)[0]
    return float(np.linalg.norm(found - exact) / max(np.linalg.norm(exact), np.finfo(np.float32).tiny))
