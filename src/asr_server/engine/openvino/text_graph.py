"""A language model's layers and head as one graph, from the SDK's weights. `Qwen3ASRThinkerTextModel.forward` is the
reference.

Tokens of all rows of a pass are packed, (n, d): only attention sees rows. Keys and values are in pages, which belong to
the caller. The nodes of a norm, and those of weights in 8 bits with their scale, are such that the compiler makes one
operation of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension as PagedAttention

from asr_server.engine.torch.passes import AttentionShape

# The names of a graph's inputs that describe the rows of a pass, in the order of PagedAttention's own inputs.
ROWS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
HEAD = "head"


# A matrix (out, in), float32, by its name and the weights of which it consists, one behind the other.
Matrix = Callable[[str, Sequence[torch.Tensor]], ov.Node]


def own_format(_: str, weights: Sequence[torch.Tensor]) -> ov.Node:
    """Return a matrix from weights in the format of the checkpoint."""
    weight = joined(weights)
    if weight.dtype == torch.float32:
        return ops.constant(weight.numpy())
    own = {torch.bfloat16: ov.Type.bf16, torch.float16: ov.Type.f16}[weight.dtype]
    numbers = ov.Tensor(weight.contiguous().view(torch.uint16).numpy(), list(weight.shape), own)
    return ops.convert(ov.op.Constant(numbers, shared_memory=False), "f32")


def in_eight_bits(integers: torch.Tensor, scale: torch.Tensor) -> ov.Node:
    """Return a matrix from integers (out, in) and the scale of each output, (out, 1), which must outlive the graph."""
    whole = ops.convert(ops.constant(integers.numpy(), shared_memory=True), "f32")
    return ops.multiply(whole, ops.constant(scale.numpy(), shared_memory=True))


def joined(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return weights (out, in) of one input as one matrix."""
    return torch.cat(list(weights)) if len(weights) > 1 else weights[0]


def matrices(text: Any, head: torch.Tensor) -> dict[str, list[torch.Tensor]]:
    """Return the weights of each matrix of a graph."""
    found = {HEAD: [head]}
    for number, layer in enumerate(text.layers):
        for name, parts in _products(layer).items():
            found[f"{number}.{name}"] = [part.weight for part in parts]
    return found


def build(text: Any, head: torch.Tensor, best: int, matrix: Matrix) -> ov.Model:
    """Return the graph of `text`, the SDK's module, and of the output head (vocabulary, d).

    Inputs: `embeds` (n, d); `cos` and `sin` (n, 1, dim) of each token's position; `places` (k,), the tokens that are
    asked for; `max_context_len` (); `ROWS` and the pages of each layer, `key_cache.0` and `value_cache.0` onwards, as
    PagedAttention takes them. Outputs: logits (k, vocabulary); the `best` likeliest tokens (k, best), in falling order;
    the logarithm of the sum of all exponentials (k, 1); the last hidden states (k, d).
    """
    graph = _Graph(text.config, matrix)
    x = graph.embeds
    for number, layer in enumerate(text.layers):
        x = graph.layer(number, layer, x)
    x = graph.norm(ops.gather(x, graph.places, _int64(0)), text.norm.weight)
    logits = ops.matmul(x, matrix(HEAD, [head]), False, True)
    likeliest = ops.topk(logits, _int64(best), -1, "max", "value", "i32")
    largest = ops.reduce_max(logits, _int64(-1), True)
    total = ops.reduce_sum(ops.exp(ops.subtract(logits, largest)), _int64(-1), True)
    lse = ops.add(largest, ops.log(total))
    outputs = [logits.output(0), likeliest.output(1), lse.output(0), x.output(0)]
    return ov.Model(outputs, graph.parameters, "language model")


class _Graph:
    """The inputs of a graph, and its layers."""

    def __init__(self, config: Any, matrix: Matrix) -> None:
        shape = self._shape = AttentionShape.of(config)
        self._eps, self._matrix = config.rms_norm_eps, matrix
        self.parameters: list[ov.Node] = []
        self.embeds = self._input("embeds", [-1, config.hidden_size], ov.Type.f32)
        self._cos = self._input("cos", [-1, 1, shape.dim], ov.Type.f32)
        self._sin = self._input("sin", [-1, 1, shape.dim], ov.Type.f32)
        self.places = self._input("places", [-1], ov.Type.i64)
        self._rows = [self._input(name, [-1], ov.Type.i32) for name in ROWS]
        self._longest = self._input("max_context_len", [], ov.Type.i32)

    def _input(self, name: str, shape: Sequence[int], kind: ov.Type) -> ov.Node:
        found = ops.parameter(ov.PartialShape(list(shape)), kind, name)
        found.output(0).set_names({name})
        self.parameters.append(found)
        return found

    def layer(self, number: int, layer: Any, x: ov.Node) -> ov.Node:
        """States (n, d) to those after a layer."""
        attention, shape = layer.self_attn, self._shape
        products = {name: (f"{number}.{name}", parts) for name, parts in _products(layer).items()}
        qkv = self._linear(self.norm(x, layer.input_layernorm.weight), *products["qkv"])
        sizes = [shape.heads * shape.dim, *[shape.kv_heads * shape.dim] * 2]
        q, k, v = ops.variadic_split(qkv, _int64(-1), ops.constant(np.array(sizes))).outputs()
        q, k = self._rotated(q, attention.q_norm.weight), self._rotated(k, attention.k_norm.weight)
        x = ops.add(x, self._linear(self._attention(number, q, k, v), *products["out"]))
        both = self._linear(self.norm(x, layer.post_attention_layernorm.weight), *products["gate_up"])
        gate, up = ops.split(both, _int64(-1), 2).outputs()
        return ops.add(x, self._linear(ops.multiply(ops.swish(gate), up), *products["down"]))

    def norm(self, x: ov.Node, weight: torch.Tensor) -> ov.Node:
        """RMS norm over the last axis."""
        mean = ops.reduce_mean(ops.power(x, _float(2)), _int64(-1), True)
        inverse = ops.divide(_float(1), ops.sqrt(ops.add(mean, _float(self._eps))))
        return ops.multiply(ops.multiply(x, inverse), ops.constant(weight.float().numpy()))

    def _linear(self, x: ov.Node, name: str, parts: Sequence[Any]) -> ov.Node:
        """Product with layers of one input, whose outputs are one behind the other."""
        y = ops.matmul(x, self._matrix(name, [part.weight for part in parts]), False, True)
        if parts[0].bias is None:
            return y
        return ops.add(y, ops.constant(torch.cat([part.bias for part in parts]).float().numpy()))

    def _rotated(self, x: ov.Output, weight: torch.Tensor) -> ov.Node:
        """Heads (n, heads * dim), normed and turned by their positions."""
        shape = self._shape
        heads = self.norm(ops.reshape(x, ops.constant(np.array([0, -1, shape.dim])), True), weight)
        first, second = ops.split(heads, _int64(-1), 2).outputs()
        # The table's sine is negative in its first half.
        y = ops.add(ops.multiply(heads, self._cos), ops.multiply(ops.concat([second, first], -1), self._sin))
        return ops.reshape(y, ops.constant(np.array([0, x.get_partial_shape()[1].get_length()])), True)

    def _attention(self, number: int, q: ov.Node, k: ov.Node, v: ov.Output) -> ov.Output:
        """Causal attention of each row over its pages, which get the keys and values: (n, heads * dim)."""
        shape = self._shape
        sizes = [-1, shape.kv_heads, -1, -1]
        pages = [self._input(f"{kind}_cache.{number}", sizes, ov.Type.dynamic) for kind in ("key", "value")]
        given = [q, k, v, *pages, *self._rows, _float(shape.dim**-0.5), _int32(0), _none(np.float32), self._longest]
        # What follows is for windows of attention, for evicting and rotating pages, and for sparse attention.
        given += [_none(np.int32), _none(np.int32), _none(np.int32), _none(np.float32), _none(np.float32), _int32(0)]
        given += [_int32(8), ops.constant(np.zeros((0, 0, 0, 0), np.float32)), _int32(0)]
        given += [*(_none(np.int32) for _ in range(4)), _none(np.uint8), _none(np.int32)]
        node = PagedAttention([one if isinstance(one, ov.Output) else one.output(0) for one in given])
        for name, value in zip(("num_k_heads", "num_v_heads"), (shape.kv_heads,) * 2, strict=True):
            node.get_rt_info()[name] = value
        for name in ("k_head_size", "v_head_size"):
            node.get_rt_info()[name] = shape.dim
        return node.output(0)


def _products(layer: Any) -> dict[str, list[Any]]:
    """Return the linear layers of a layer; those that read the same input are one matrix."""
    attention, mlp = layer.self_attn, layer.mlp
    return {
        "qkv": [attention.q_proj, attention.k_proj, attention.v_proj],
        "out": [attention.o_proj],
        "gate_up": [mlp.gate_proj, mlp.up_proj],
        "down": [mlp.down_proj],
    }


def _none(kind: type[np.generic]) -> ov.Node:
    return ops.constant(np.zeros(0, kind))


def _float(value: float) -> ov.Node:
    return ops.constant(np.float32(value))


def _int32(value: int) -> ov.Node:
    return ops.constant(np.int32(value))


def _int64(value: int) -> ov.Node:
    return ops.constant(np.int64(value))
