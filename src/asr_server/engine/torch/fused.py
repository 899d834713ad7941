"""Small operations of a language model as Triton kernels, for GPUs: one launch replaces several of torch.

A kernel computes in float32 and rounds its results. The result of a row does not depend on the other rows. Tensors are
contiguous unless a docstring says otherwise. A launch waits for nothing, and its grid follows from the shapes of its
tensors, so it can be recorded in a CUDA graph once it has run. The first launch with a model's sizes compiles the
kernel for any number of rows.

A block is the least power of two that holds a row, or part of one, since Triton's blocks are powers of two. Nothing is
tuned at run time: tuning would time kernels while other work uses the GPU, and choose others at each start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from asr_server.engine.torch.language_model import Angles, Room

# The most numbers of a row that one program reads. Rows of a step are few and long, so that several programs share one.
_GATED, _LOGITS = 1024, 4096


class FusedOperations:
    """Implements `Operations` of the language model. `eps`: of its norms."""

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self._eps)

    def added(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Operations`. The norm is computed from the sum before that is rounded."""
        total, normed = torch.empty_like(x), torch.empty_like(x)
        d = x.shape[-1]
        launch(_added, (len(x),), x, y, weight, total, normed, self._eps, D=d, BLOCK=triton.next_power_of_2(d))
        return total, normed

    def heads(self, qkv: torch.Tensor, weights: torch.Tensor, angles: Angles, room: Room) -> torch.Tensor:
        """See `Operations`. Only the last axis of keys and values must be contiguous. Places are int32 or int64.

        If two tokens have the same place, it gets numbers of either.
        """
        keys, values, places = room
        kv_heads, dim = keys.shape[1:]
        queries = len(weights) - kv_heads
        q = qkv.new_empty(len(qkv), queries, dim)
        strides = (*keys.stride()[:2], *values.stride()[:2])
        sizes = {"HEADS": queries, "KV_HEADS": kv_heads, "DIM": dim, "BLOCK": triton.next_power_of_2(dim)}
        grid = (len(qkv), queries + 2 * kv_heads)
        launch(_heads, grid, qkv, weights, *angles, self._eps, q, keys, values, places, *strides, **sizes)
        return q

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Operations`. The activation is SiLU."""
        n, m = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(n, m)
        launch(_gated, (n, triton.cdiv(m, _GATED)), gate_up, out, M=m, BLOCK=_GATED)
        return out


def likeliest(logits: torch.Tensor, watched: int) -> torch.Tensor:
    """Return (n, 3) float64 of `logits` (n, vocabulary): the id of the largest, the lowest of equal ones, and the
    natural log-probabilities of that id and of the id `watched`.

    If a row has a NaN or +inf, or only -inf, its log-probabilities are NaN. Its id is still one of the vocabulary.
    """
    n, words = logits.shape
    blocks = triton.cdiv(words, _LOGITS)
    # Not parts of one tensor: Triton would compile anew if the second did not begin at a multiple of 16 bytes.
    largest, sums = (logits.new_empty(n, blocks, dtype=torch.float32) for _ in range(2))
    ids = logits.new_empty(n, blocks, dtype=torch.int32)
    launch(_parts, (n, blocks), logits, largest, ids, sums, WORDS=words, BLOCK=_LOGITS)
    out = logits.new_empty(n, 3, dtype=torch.float64)
    sizes = {"WORDS": words, "PARTS": blocks, "BLOCK": triton.next_power_of_2(blocks)}
    launch(_merged, (n,), logits, largest, ids, sums, out, watched, **sizes)
    return out


def problem(config: Any, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernels cannot be used for a language model of this configuration, None if they can.

    Each kernel runs once on the device, on random numbers of the model's sizes, and is compared with torch in float64.
    """
    if config.hidden_act != "silu":
        return f"the model's activation is {config.hidden_act}, and theirs SiLU"
    try:
        for name, found, expected in compared(config, device, dtype):
            if not torch.allclose(found.double(), expected, rtol=2 * torch.finfo(found.dtype).eps, atol=1e-5):
                return f"{name} differ from torch's by {float((found - expected).abs().max()):.2g}"
    # Whatever a compiler, a driver or a library raises, the model can be loaded without the kernels.
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def compared(config: Any, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the name of each result, the result of the kernels, and torch's result in float64."""
    generator, n, eps = torch.Generator().manual_seed(0), 3, config.rms_norm_eps
    operations = FusedOperations(eps)
    queries, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x, y, weight = random(n, config.hidden_size), random(n, config.hidden_size), random(config.hidden_size)
    total = x.double() + y.double()
    found = operations.added(x, y, weight)
    yield "sums", found[0], total
    yield "norms", found[1], F.rms_norm(total, total.shape[1:], weight.double(), eps)
    qkv, weights = random(n, (queries + 2 * kv_heads) * dim), random(queries + kv_heads, dim)
    cos, sin = random(n, dim), random(n, dim)
    keys, values = torch.zeros(2, n + 1, kv_heads, dim, device=device, dtype=dtype)
    places = torch.tensor([2, 0, 3], device=device)
    q = operations.heads(qkv, weights, (cos, sin), Room(keys, values, places))
    qk, v = qkv.double().unflatten(1, (-1, dim)).split([queries + kv_heads, kv_heads], dim=1)
    qk = F.rms_norm(qk, (dim,), None, eps) * weights.double()
    qk = qk * cos.double()[:, None] + qk.roll(dim // 2, -1) * sin.double()[:, None]
    expected = torch.zeros_like(keys, dtype=torch.float64)
    yield "queries", q, qk[:, :queries]
    yield "keys", keys, expected.index_copy(0, places, qk[:, queries:])
    yield "values", values, expected.index_copy(0, places, v)
    gate_up = random(n, 2 * config.intermediate_size)
    gate, up = gate_up.double().chunk(2, -1)
    yield "gates", operations.gated(gate_up), F.silu(gate) * up
    logits, watched = random(n, config.vocab_size), config.vocab_size - 1
    likely, logprobs = logits.argmax(-1, keepdim=True), logits.double().log_softmax(-1)
    chosen = torch.cat([likely.double(), logprobs.gather(-1, likely), logprobs[:, -1:]], -1)
    yield "choices", likeliest(logits, watched).float(), chosen


def launch(kernel: Any, grid: tuple[int, ...], first: torch.Tensor, *arguments: Any, **constants: Any) -> None:
    # Triton launches on the current GPU, which need not be the tensors' GPU. A warp of 32 threads has 256 numbers: the
    # widest load of a thread is 8 numbers of 16 bits.
    with torch.cuda.device_of(first):
        kernel[grid](first, *arguments, **constants, num_warps=min(max(constants["BLOCK"] // 256, 1), 16))


@triton.jit
def _added(x, y, weight, total, normed, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < D
    row = tl.program_id(0).to(tl.int64) * D + at
    # Places of a block outside the row are 0, and add nothing to the sum of squares.
    value = tl.load(x + row, inside, 0.0).to(tl.float32) + tl.load(y + row, inside, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / D + eps)
    tl.store(total + row, value, inside)
    tl.store(normed + row, value * scale * tl.load(weight + at, inside, 0.0).to(tl.float32), inside)


# `places` may begin anywhere in a tensor of a pass. Triton would compile the kernel anew for addresses that are not
# multiples of 16 bytes.
@triton.jit(do_not_specialize_on_alignment=["places"])
def _heads(
    qkv,
    weights,
    cos,
    sin,
    eps,
    q,
    keys,
    values,
    places,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < DIM
    given = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * DIM
    value = tl.load(given + at, inside, 0.0).to(tl.float32)
    # Keys and values of all layers may be more than 2^31 numbers.
    place = tl.load(places + token).to(tl.int64)
    if head >= HEADS + KV_HEADS:
        tl.store(values + place * value_stride + (head - HEADS - KV_HEADS) * value_head_stride + at, value, inside)
    else:
        scale = tl.rsqrt(tl.sum(value * value) / DIM + eps)
        # The other number of each pair is half a head away. It is read again, from the cache.
        other = tl.where(at < DIM // 2, at + DIM // 2, at - DIM // 2)
        pair = tl.load(given + other, inside, 0.0).to(tl.float32)
        weight = weights + head * DIM
        value *= scale * tl.load(weight + at, inside, 0.0).to(tl.float32)
        pair *= scale * tl.load(weight + other, inside, 0.0).to(tl.float32)
        value *= tl.load(cos + token * DIM + at, inside, 0.0).to(tl.float32)
        value += pair * tl.load(sin + token * DIM + at, inside, 0.0).to(tl.float32)
        if head < HEADS:
            tl.store(q + (token * HEADS + head) * DIM + at, value, inside)
        else:
            tl.store(keys + place * key_stride + (head - HEADS) * key_head_stride + at, value, inside)


@triton.jit
def _gated(gate_up, out, M: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < M
    gate = tl.load(gate_up + row * 2 * M + at, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * M + M + at, inside, 0.0).to(tl.float32)
    # For a gate far below zero the exponential is infinite and the quotient 0, which is its limit.
    tl.store(out + row * M + at, gate / (1.0 + tl.exp(-gate)) * up, inside)


@triton.jit
def _parts(logits, largest, ids, sums, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the largest logit of a block, its id, and the sum of exp(logit - largest)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    logit = tl.load(logits + row * WORDS + at, at < WORDS, -float("inf")).to(tl.float32)
    # A NaN is not equal to itself. Leave it out of the maximum, so that an id is always found, and keep it in the sum.
    number = tl.where(logit == logit, logit, -float("inf"))
    most = tl.max(number)
    out = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(largest + out, most)
    tl.store(ids + out, tl.min(tl.where(number == most, at, WORDS)))
    # If all are -inf, their difference from the maximum would be NaN, and so would the sum of all blocks.
    tl.store(sums + out, tl.sum(tl.exp(logit - tl.where(most == -float("inf"), 0.0, most))))


@triton.jit
def _merged(logits, largest, ids, sums, out, watched, WORDS: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Write a row of the result from the row's blocks."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < PARTS
    part = tl.load(largest + row * PARTS + at, inside, -float("inf"))
    most = tl.max(part)
    lowest = tl.min(tl.where(part == most, tl.load(ids + row * PARTS + at, inside, WORDS), WORDS))
    # NaN if the sum of any block is NaN, or if the largest logit is infinite: inf - inf.
    log = tl.log(tl.sum(tl.load(sums + row * PARTS + at, inside, 0.0) * tl.exp(part - most)))
    other = tl.load(logits + row * WORDS + watched).to(tl.float32)
    tl.store(out + row * 3, lowest.to(tl.float64))
    tl.store(out + row * 3 + 1, -log.to(tl.float64))
    tl.store(out + row * 3 + 2, (other - most - log).to(tl.float64))
