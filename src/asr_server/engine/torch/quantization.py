"""The linear layers that the model gets in 8 bits, and how far they are from those that they replace.

On GPUs libraries bring the kernels: bitsandbytes (int8) and torchao (fp8). Both scale each row of the input and each
output of the weights by itself, so that a row's numbers are those that it has alone.
`linear.py` has the layers for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from asr_server.engine.protocol import Option
from asr_server.engine.torch.linear import Int8Head, Int8Linear, Linear, MakeLinear, plain

# Rows of the input on which a layer is compared.
_ROWS = 16


@dataclass(frozen=True, slots=True)
class Layers:
    """The functions that make the layers."""

    encoder: MakeLinear = plain
    language_model: MakeLinear = plain
    # from the head's weights (vocabulary, d); None keeps the model's own
    head: Callable[[torch.Tensor], Linear] | None = None
    measured: Measured | None = None  # how far the layers are from those that they replace; None where none is replaced

    def options(self, quantize: str) -> tuple[Option, ...]:
        """Return what was measured while the layers were made; called after that."""
        if self.measured is None:
            return ()
        count, largest = self.measured.count, self.measured.largest
        reason = f"the outputs of {count} layers differ by at most {largest:.1%} from those of the layers they replace"
        return (Option("quantize", True, quantize, reason),)


class Measured:
    """Makes layers, and compares each with the one that it replaces.

    `largest`: the norm of the difference over that of the outputs, on random inputs, of the layer that differs most.
    """

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0.0

    def of(self, make: MakeLinear) -> MakeLinear:
        """`make` with the comparison."""
        return partial(self._make, make)

    def _make(self, make: MakeLinear, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        made = make(weight, bias)
        noise = torch.randn(_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0))
        given = noise.to(weight.device, weight.dtype)
        exact = F.linear(given, weight).float()
        without_bias = made(given) if bias is None else made(given) - bias
        error = (without_bias.float() - exact).norm() / exact.norm().clamp(min=torch.finfo(torch.float32).tiny)
        self.count += 1
        self.largest = max(self.largest, float(error))
        return made


def layers(quantize: str, device: str) -> Layers:
    """Return the functions for a plan: `quantize` is "int8", "fp8" or "" for none."""
    if not quantize:
        return Layers()
    measured = Measured()
    if device.startswith("cuda"):
        make = measured.of({"int8": gpu_int8, "fp8": gpu_fp8}[quantize])
        return Layers(make, make, measured=measured)
    # A clip of half a second has more audio tokens than what is few rows.
    encoder = measured.of(partial(Int8Linear, few=False))
    return Layers(encoder, measured.of(Int8Linear), Int8Head, measured)


def gpu_int8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return a copy of the layer with weights (out, in) as integers, on the device of `weight`.

    Without the outliers that the library can compute in 16 bits: which columns those are depends on the input, so that
    a step would wait for the GPU, and could not be recorded.
    """
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    outputs, inputs = weight.shape
    layer = Linear8bitLt(inputs, outputs, bias=bias is not None, has_fp16_weights=False, threshold=0.0, device="meta")
    # The library converts weights when they are moved to the device, from main memory.
    layer.weight = Int8Params(weight.detach().cpu(), requires_grad=False, has_fp16_weights=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer.to(weight.device).eval()


def gpu_fp8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return a copy of the layer in floating point of 8 bits (e4m3), which GPUs multiply from compute capability 8.9
    on."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    quantize_(layer, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
    return layer.eval()
