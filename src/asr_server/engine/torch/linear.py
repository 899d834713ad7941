"""Linear layers as callables: in the number format of their weights, or in 8 bits on GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from asr_server.engine.protocol import Option

# (…, in) to (…, out).
Linear = Callable[[torch.Tensor], torch.Tensor]
# Made from a weight (out, in) and a bias (out,) or None.
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]


def plain(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    return partial(F.linear, weight=weight, bias=bias)


def stacked(*parts: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and bias of a single layer that joins layers with the same input."""
    weight = torch.cat([part.weight for part in parts])
    return weight, torch.cat([part.bias for part in parts]) if parts[0].bias is not None else None


def strided(x: torch.Tensor, convolution: nn.Conv2d) -> torch.Tensor:
    """Return the convolution of (1, channels, bins, columns) at every second column. The columns include the padding.

    It never makes a single column: with AMX, oneDNN 3.12 of torch 2.13 (`brg_conv_fwd:avx10_1_512_amx`, bfloat16,
    stride 2) then reads memory that nobody has written, and gives NaN or wrong numbers (2026-11-24). Two more columns
    of zeros make a second column, which is cut off.
    """
    columns = (x.shape[-1] - 1) // 2
    y = F.conv2d(
        F.pad(x, (0, 2)) if columns == 1 else x, convolution.weight, convolution.bias, stride=2, padding=(1, 0)
    )
    return y[..., :columns]


# Input rows for the comparison of a layer.
_ROWS = 16


class Layers:
    """Makes the layers of a plan on a GPU. `quantize`: "int8", "fp8" or "" for none. Layers in 8 bits are compared with
    the layers that they replace."""

    def __init__(self, quantize: str) -> None:
        self._quantize = quantize
        self._make: MakeLinear = {"": plain, "int8": gpu_int8, "fp8": gpu_fp8}[quantize]
        self.count = 0  # layers that replace others
        # Of the layer that differs most: the norm of the difference over the norm of the outputs, on random inputs.
        self.largest = 0.0

    def options(self) -> tuple[Option, ...]:
        """Return the measured difference as an option. Called after all layers are made."""
        reason = f"the outputs of {self.count} layers differ by at most {self.largest:.1%} from those of the layers "
        return (Option("quantize", True, self._quantize, f"{reason}they replace"),) if self._quantize else ()

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        made = self._make(weight, bias)
        if not self._quantize:
            return made
        noise = torch.randn(_ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0))
        given = noise.to(weight.device, weight.dtype)
        exact = F.linear(given, weight).float()
        without_bias = made(given) if bias is None else made(given) - bias
        error = (without_bias.float() - exact).norm() / exact.norm().clamp(min=torch.finfo(torch.float32).tiny)
        self.count += 1
        self.largest = max(self.largest, float(error))
        return made


def gpu_int8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return a copy of the layer with weights (out, in) as integers, on the device of `weight`.

    The library could compute outlier columns in 16 bits, but that is off: these columns depend on the input, so a step
    would wait for the GPU and could not be recorded.
    """
    from bitsandbytes.nn import Int8Params, Linear8bitLt

    # The library would log, for each layer of each pass, that it takes inputs in float16.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    outputs, inputs = weight.shape
    layer = Linear8bitLt(inputs, outputs, bias=bias is not None, has_fp16_weights=False, threshold=0.0, device="meta")
    # The library converts weights when they are moved from main memory to the device.
    layer.weight = Int8Params(weight.detach().cpu(), requires_grad=False, has_fp16_weights=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer.to(weight.device).eval()


def gpu_fp8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return a copy of the layer in 8-bit floating point (e4m3), which GPUs can multiply from compute capability 8.9
    on."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    quantize_(layer, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
    return layer.eval()
