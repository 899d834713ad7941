"""Linear layers in 8 bits on GPUs, by libraries that bring the kernels: bitsandbytes (int8) and torchao (fp8).

Both scale each row of the input and each output of the weights by itself, so that a row's numbers are those that it has
alone. `linear.py` has the layers for CPUs.
"""

from __future__ import annotations

import torch
from torch import nn

from asr_server.engine.qwen.linear import Linear


def int8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """A copy of the layer with weights (out, in) as integers, on the device of `weight`.

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


def fp8(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """A copy of the layer in floating point of 8 bits (e4m3), which GPUs multiply from compute capability 8.9 on."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    quantize_(layer, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))
    return layer.eval()
