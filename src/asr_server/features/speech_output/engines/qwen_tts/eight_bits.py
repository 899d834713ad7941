"""Linear layers in 8 bits on CPUs, for which torch has kernels: a step of the talker reads a quarter of the memory."""

from __future__ import annotations

import warnings

import torch

from asr_server.engine import cpu
from asr_server.engine.cpu import INT8_FLAGS
from asr_server.engine.torch.linear import Layers, Measured, layers

_LARGEST = 127
# To here FBGEMM's kernel is the faster one. Beside oneDNN's it takes 0.6 of the time for one row of the 0.6B's layers,
# 0.7 for eight, 1.1 for 32 and 1.7 for 410 (AMX, two cores, 2026-11-23).
_FEW_ROWS = 16


def layers_of(quantize: str, device: str) -> Layers:
    """Return the functions that make the layers of a model: `quantize` is "int8", "fp8" or "" for none."""
    if not quantize or device.startswith("cuda"):
        return layers(quantize)
    if cpu.flags().isdisjoint(INT8_FLAGS):
        return Layers()  # sums of 8-bit products would overflow
    measured = Measured()
    return Layers(language_model=measured.of(Int8Linear), measured=measured)


class Int8Linear:
    """A copy of a layer in 8 bits: a scale for each output of the weights, one for each row of the input.

    A row has a scale of its own, so that its integers are those that it has alone; one large value costs its row
    precision and no other. The sums are exact: integers of 32 bits. Keeps nothing of `weight` (out, in).

    `few`, `many`: whether it is for passes of few rows, of many, or of both: each kernel has its own copy.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, few: bool = True, many: bool = True
    ) -> None:
        weight = weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny * _LARGEST) / _LARGEST
        integers = (weight / scale[:, None]).round().to(torch.int8)
        few = few and "fbgemm" in torch.backends.quantized.supported_engines  # of processors of the x86 kind
        self._few = _FewRows(integers, scale) if few else None
        self._many = _ManyRows(integers, scale) if many or not few else None
        self._bias = bias.detach().clone() if bias is not None else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(…, in) to (…, out) in the dtype of `x`."""
        # Fewer operations would do (`vector_norm`, `addcdiv`, a conversion that cuts off), and take four times as long.
        rows = x.float()
        largest = rows.abs().amax(-1, keepdim=True)
        scaled = (rows * (_LARGEST / largest)).round_()
        if self._few is not None and (self._many is None or x.numel() <= _FEW_ROWS * x.shape[-1]):
            y = self._few(scaled).to(x.dtype)
        else:
            assert self._many is not None
            y = self._many(scaled, x.dtype)
        largest = largest.to(x.dtype)
        return y.mul_(largest) if self._bias is None else torch.addcmul(self._bias, y, largest)


class _FewRows:
    """FBGEMM's kernel. torch offers it for its quantised tensors alone, which are deprecated; no other is as fast."""

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor) -> None:
        zeros = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that they are deprecated
            weight = torch._make_per_channel_quantized_tensor(integers, (scale / _LARGEST).double(), zeros, 0)
        torch.backends.quantized.engine = "fbgemm"  # which packs; nothing else here asks for it
        self._packed = torch.ops.quantized.linear_prepack(weight, None)

    def __call__(self, scaled: torch.Tensor) -> torch.Tensor:
        """Whole numbers from -127 to 127 as float32 (…, in) to float32 (…, out)."""
        y: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            scaled, 1.0, 128, self._packed
        )
        return y


class _ManyRows:
    """oneDNN's kernel, which uses AMX."""

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor) -> None:
        self._scale = scale / _LARGEST
        self._packed = torch.ops.onednn.qlinear_prepack(integers, None)
        self._zero_points = torch.zeros(len(scale), dtype=torch.int32)
        # Inputs are shifted into unsigned bytes, which this takes out again: signed ones are hundreds of times slower
        # on processors without AMX.
        self._correction = -128 * self._scale * integers.sum(1, dtype=torch.int32)

    def __call__(self, scaled: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Whole numbers from -127 to 127 as float32 (…, in) to (…, out) in `dtype`."""
        y: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            scaled.to(torch.int8).view(torch.uint8).bitwise_xor_(128),
            *(1.0, 0, self._packed, self._scale, self._zero_points, self._correction),
            *(1.0, 0, dtype, "none", [], ""),
        )
        return y
