"""Linear layers as callables: in the number format of their weights, or in 8 bits, where processors multiply faster."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from asr_server.engine import cpu
from asr_server.engine.cpu import INT8_FLAGS
from asr_server.engine.protocol import Option

# (…, in) to (…, out).
Linear = Callable[[torch.Tensor], torch.Tensor]
# Made from a weight (out, in) and a bias (out,) or None.
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]

_LARGEST = 127
# To here FBGEMM's kernel is the faster one. Beside oneDNN's it takes 0.6 of the time for one row of the 0.6B's layers,
# 0.7 for eight, 1.1 for 32 and 1.7 for 410 (AMX, two cores, 2026-11-23).
_FEW_ROWS = 16
# Logits of a row that are computed again from the head's own weights. An 8-bit logit is off by about a hundredth of the
# spread of all of them, and so many lie above any that it could hide.
_EXACT_LOGITS = 16
_GROUP = 128


def plain(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Return the layer as its weights (out, in) are."""
    return partial(F.linear, weight=weight, bias=bias)


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


class Int8Head:
    """The output head in 8 bits; the logits that matter, the largest of each row, are those of `weight` itself.

    `weight` (vocabulary, d) is kept: it is the table of embeddings too.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight
        self._linear = Int8Linear(weight, many=False)  # mostly one state of each row

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states (n, d) to logits (n, vocabulary) in float32."""
        hidden = hidden.float()
        logits = self._linear(hidden)
        best = largest(logits, min(_EXACT_LOGITS, logits.shape[-1]))
        return logits.scatter_(-1, best, torch.einsum("nkd,nd->nk", self.weight[best].float(), hidden))


def largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return where the `count` largest of each row are, (n, words) to (n, count), in no order.

    They are in the groups with the `count` largest maxima: for eight rows of the released vocabulary a tenth of the
    time of `topk` over all.
    """
    if logits.shape[-1] % _GROUP or logits.shape[-1] // _GROUP < count:
        return logits.topk(count, sorted=False).indices
    groups = logits.unflatten(-1, (-1, _GROUP))
    chosen = groups.amax(-1).topk(count, sorted=False).indices
    inside = groups.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1).topk(count, sorted=False).indices
    return chosen.gather(1, inside // _GROUP) * _GROUP + inside % _GROUP


def stacked(*parts: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of layers of one input as those of a single one."""
    weight = torch.cat([part.weight for part in parts])
    return weight, torch.cat([part.bias for part in parts]) if parts[0].bias is not None else None


def strided(x: torch.Tensor, convolution: nn.Conv2d) -> torch.Tensor:
    """Return the convolution of (1, channels, bins, columns), whose first and last column are there, at every second
    column.

    Never of a single column: with AMX, oneDNN 3.12 of torch 2.13 (`brg_conv_fwd:avx10_1_512_amx`, bfloat16, stride 2)
    then reads memory that nobody has written, and gives NaN or wrong numbers (2026-11-24). A column of zeros more gives
    one that is cut off. It can go when `product_check.py` passes without it on a processor with AMX.
    """
    columns = (x.shape[-1] - 1) // 2
    y = F.conv2d(
        F.pad(x, (0, 2)) if columns == 1 else x, convolution.weight, convolution.bias, stride=2, padding=(1, 0)
    )
    return y[..., :columns]


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
    if cpu.flags().isdisjoint(INT8_FLAGS):
        return Layers()  # sums of 8-bit products would overflow; what the plan means is in OpenVINO then
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
