"""The products of models in torch, compared with float32 on this machine: in 8 bits and bfloat16, by number of rows.

Libraries choose another kernel for each processor and shape, so a fault of one shows on some machines alone, and at
some shapes: a wrong kernel of oneDNN for AMX was found by these comparisons. Memory is filled with NaN beforehand, so
that what a kernel reads before it is written shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from asr_server.engine import cpu
from asr_server.engine.cpu import INT8_FLAGS
from asr_server.engine.torch.linear import strided
from asr_server.features.speech_output.engines.qwen_tts.eight_bits import Int8Linear

MOST_ROWS = 600
ALL_ROWS = range(1, MOST_ROWS + 1)
# Every tile is filled in part, and in full: kernels have blocks of 16, 32 and 64 rows.
FEW_ROWS = (*range(1, 68), 96, 97, 104, 128, 129, 255, 256, 257, 410, 511, 512, 513, 600)

# Half the distance of two neighbouring numbers: what one rounding changes at most, relative to the number.
_ROUNDING = torch.finfo(torch.bfloat16).eps / 2
_SUM_ROUNDING = torch.finfo(torch.float32).eps / 2
_POISONED = tuple(1 << power for power in range(5, 17))
_TOKENS_BEFORE = 51


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that decide the shapes of a checkpoint's products."""

    d_model: int  # width of the encoder
    ffn: int  # width inside the encoder's layers
    encoder_heads: int
    channels: int  # of the encoder's convolutions
    hidden: int  # width of the language model
    intermediate: int  # width inside the language model's layers
    heads: int  # of queries
    kv_heads: int  # of keys and of values
    dim: int  # size of a head

    @classmethod
    def of(cls, checkpoint: Path) -> Sizes:
        """Return the sizes of the checkpoint in this directory."""
        thinker = json.loads((checkpoint / "config.json").read_text())["thinker_config"]
        audio, text = thinker["audio_config"], thinker["text_config"]
        return cls(
            d_model=audio["d_model"],
            ffn=audio["encoder_ffn_dim"],
            encoder_heads=audio["encoder_attention_heads"],
            channels=audio["downsample_hidden_size"],
            hidden=text["hidden_size"],
            intermediate=text["intermediate_size"],
            heads=text["num_attention_heads"],
            kv_heads=text["num_key_value_heads"],
            dim=text["head_dim"],
        )


# Qwen3-ASR-0.6B. The language model of its aligner and the talker of Qwen3-TTS-0.6B have these shapes too.
RELEASED = Sizes(896, 3584, 14, 480, 1024, 3072, 16, 8, 128)


@dataclass(frozen=True, slots=True)
class ProductFault:
    """A product that is wrong."""

    product: str
    rows: int  # rows with which it was computed
    wrong: int  # how many of its numbers are further from float32 than rounding explains
    not_finite: int  # how many of its numbers are not finite

    def __str__(self) -> str:
        return f"{self.product}, {self.rows} rows: {self.wrong} numbers wrong, {self.not_finite} of them not finite"


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """A product to check, computed for some rows.

    A row's numbers do not depend on those after it, so one computation in float32 serves all numbers of rows.
    """

    name: str
    run: Callable[[int], torch.Tensor]  # computes the first rows
    exact: torch.Tensor  # their numbers in float32
    bound: torch.Tensor  # how far each number may be from `exact`

    def fault(self, rows: int) -> ProductFault | None:
        """Return the fault with this number of rows, None where it is right."""
        _poison()
        got = self.run(rows).float()
        right = (got - self.exact[:rows]).abs() <= self.bound[:rows]
        if bool(right.all()):
            return None
        return ProductFault(self.name, rows, int((~right).sum()), int((~got.isfinite()).sum()))


def instruction_set() -> str:
    """Return the instructions that torch uses on this processor, such as "AVX512 with AMX"."""
    amx = " with AMX" if torch.cpu._is_amx_tile_supported() else ""
    return torch.backends.cpu.get_cpu_capability() + amx


def has_8_bits() -> bool:
    """Return True if the engine multiplies in 8 bits here. Elsewhere a product takes seconds, and no plan has it."""
    return bool(cpu.flags().intersection(INT8_FLAGS))


@torch.inference_mode()
def faults(sizes: Sizes, rows: Sequence[int] = FEW_ROWS) -> list[ProductFault]:
    """Return the products of a model of these sizes that are wrong, each with the first of `rows` that shows it."""
    found = []
    for product in _products(sizes, max(rows)):
        columns = range(1, len(product.exact) + 1)
        fault = next((own for n in rows if n in columns and (own := product.fault(n)) is not None), None)
        if fault is not None:
            found.append(fault)
    return found


def _products(sizes: Sizes, rows: int) -> Iterator[_Product]:
    source = torch.Generator().manual_seed(0)
    qkv = (sizes.heads + 2 * sizes.kv_heads) * sizes.dim
    layers = {
        "encoder.conv_out": (sizes.channels * 16, sizes.d_model),
        "encoder.qkv": (sizes.d_model, 3 * sizes.d_model),
        "encoder.up": (sizes.d_model, sizes.ffn),
        "encoder.down": (sizes.ffn, sizes.d_model),
        "encoder.proj": (sizes.d_model, sizes.hidden),
        "qkv": (sizes.hidden, qkv),
        "out": (sizes.heads * sizes.dim, sizes.hidden),
        "gate_up": (sizes.hidden, 2 * sizes.intermediate),
        "down": (sizes.intermediate, sizes.hidden),
    }
    for name, (width, out) in layers.items():
        x, weight = _random(source, rows, width), _random(source, out, width) / width**0.5
        bias = _random(source, out) if name.startswith("encoder") else None
        yield _linear(name, x, weight, bias)
        kernels = ("many",) if name.startswith("encoder") else ("many", "few")
        for kernel in kernels if has_8_bits() else ():
            yield _int8_linear(name, x, weight, bias, kernel)
    yield _attention("encoder.attention", source, rows, (sizes.encoder_heads, sizes.d_model // sizes.encoder_heads))
    yield _attention("attention", source, rows, (sizes.kv_heads, sizes.dim))
    for channels in (1, sizes.channels):
        yield from _convolutions(source, channels, sizes.channels)


def _linear(name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> _Product:
    """The sum is rounded to bfloat16 once, with a bias twice; sums in float32 are rounded at every addition."""
    exact = F.linear(x.float(), weight.float(), bias.float() if bias is not None else None)
    magnitude = F.linear(x.float().abs(), weight.float().abs(), bias.float().abs() if bias is not None else None)
    bound = _ROUNDING * exact.abs() + _SUM_ROUNDING * 2 * (x.shape[1] + 2) * magnitude
    if bias is not None:
        bound += _ROUNDING * (exact.abs() + bias.float().abs())
    return _Product(f"{name} in bfloat16", lambda n: F.linear(x[:n], weight, bias), exact, bound)


def _int8_linear(name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, kernel: str) -> _Product:
    """The integers are those of the layer, so that sums are exact; what comes of them is rounded three times."""
    layer = Int8Linear(weight, bias, few=kernel == "few", many=kernel == "many")
    scale = weight.float().abs().amax(1) / 127
    largest = x.float().abs().amax(1, keepdim=True)
    rows = (x.float() * (127 / largest)).round()
    product = (rows.double() @ (weight.float() / scale[:, None]).round().double().T).float() * scale * (largest / 127)
    exact = product + bias.float() if bias is not None else product
    bound = _ROUNDING * 4 * product.abs() + _ROUNDING * 2 * exact.abs() + 1e-6
    return _Product(f"{name} in 8 bits, for {kernel} rows", lambda n: layer(x[:n]), exact, bound)


def _attention(name: str, source: torch.Generator, rows: int, shape: tuple[int, int]) -> _Product:
    """Queries behind tokens before them, each with the keys to its own place, as in a live session.

    Scores, shares and outputs are rounded to bfloat16 at most; a share is off by what its score is.
    """
    heads, dim = shape
    count = rows + _TOKENS_BEFORE
    q, k, v = _random(source, 1, heads, rows, dim), *(_random(source, 1, heads, count, dim) for _ in range(2))
    visible = torch.ones(rows, count, dtype=torch.bool).tril(_TOKENS_BEFORE)
    scores = (q.float() @ k.float().transpose(-1, -2) * dim**-0.5).masked_fill(~visible, -torch.inf)
    shares = scores.softmax(-1)
    largest = float(scores[scores.isfinite()].abs().amax())
    bound = _ROUNDING * (4 + 4 * largest) * (shares @ v.float().abs())

    def run(n: int) -> torch.Tensor:
        end = n + _TOKENS_BEFORE
        mask = visible[:n, :end]
        return F.scaled_dot_product_attention(q[:, :, :n], k[:, :, :end], v[:, :, :end], attn_mask=mask)[0].transpose(
            0, 1
        )

    exact = (shares @ v.float())[0].transpose(0, 1)
    return _Product(f"{name} in bfloat16", run, exact, bound[0].transpose(0, 1))


def _convolutions(source: torch.Generator, channels: int, out: int) -> Iterator[_Product]:
    """A convolution of the encoder over pieces of audio, and over the columns of a live session. Its rows are those."""
    layer = nn.Conv2d(channels, out, 3, stride=2, padding=1, dtype=torch.bfloat16)
    layer.weight.copy_(_random(source, *layer.weight.shape) / (9 * channels) ** 0.5)
    assert layer.bias is not None
    layer.bias.copy_(_random(source, out))
    bins, columns = (128, 50) if channels == 1 else (64, 25)
    pieces, stream = (
        _random(source, 16, channels, bins, 2 * columns),
        _random(source, 1, channels, bins, 2 * columns + 1),
    )
    exact, bound = _convolved(pieces, layer, (1, 1))
    yield _Product(f"convolution of {channels} channels, pieces", lambda n: layer(pieces[:n]), exact, bound)
    exact, bound = (x[0].movedim(-1, 0) for x in _convolved(stream, layer, (1, 0)))

    def run(n: int) -> torch.Tensor:
        return strided(stream[..., : 2 * n + 1], layer)[0].movedim(-1, 0)

    yield _Product(f"convolution of {channels} channels, columns", run, exact, bound)


def _convolved(x: torch.Tensor, layer: nn.Conv2d, padding: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the convolution in float32, and its bound, as that of a linear layer."""
    weight, bias = layer.weight.float(), layer.bias.float() if layer.bias is not None else None
    assert bias is not None
    given: dict[str, Any] = {"stride": 2, "padding": padding}
    exact = F.conv2d(x.float(), weight, bias, **given)
    magnitude = F.conv2d(x.float().abs(), weight.abs(), bias.abs(), **given)
    rounded = 2 * exact.abs() + bias.abs()[:, None, None]
    return exact, _ROUNDING * rounded + _SUM_ROUNDING * 2 * (weight[0].numel() + 2) * magnitude


def _random(source: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=source).to(torch.bfloat16)


def _poison() -> None:
    """Leave NaN in the memory that the allocator hands out next."""
    held = [torch.full((numbers,), torch.nan) for numbers in _POISONED]
    del held
