"""A language model's layers and head as one graph, from the weights of a checkpoint. `Qwen3ASRThinkerTextModel.forward`
of the SDK is the reference.

Tokens of all rows of a pass are packed, (n, d): only attention sees rows. Keys and values are in pages, which belong to
the caller. The nodes of a norm are such that the compiler fuses them into one operation, and so are the nodes of an
8-bit weight with its scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension as PagedAttention

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.weights import StoredWeights, Weight

# The names of a graph's inputs that describe the rows of a pass, in the order of PagedAttention's own inputs.
ROWS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
# The names of the weights that are concatenated to a matrix of a graph, by the matrix's name.
Parts = dict[str, tuple[str, ...]]
# Returns the matrix (out, in), float32, of a name.
Matrix = Callable[[str], ov.Node]

HEAD = "head"
# The names of weights. A head without its own weights uses the weights of the embeddings.
_HEAD, _EMBEDDINGS = "thinker.lm_head.weight", "thinker.model.embed_tokens.weight"
_LAYERS, _NORM = "thinker.model.layers.", "thinker.model.norm.weight"
_OWN = {"BF16": ov.Type.bf16, "F16": ov.Type.f16}


@dataclass(frozen=True, slots=True, eq=False)
class TextWeights:
    """The sizes and the weights of a language model and of its head."""

    weights: StoredWeights
    head: str  # the name of the head
    layers: int
    heads: int  # of queries
    kv_heads: int  # of keys and of values
    dim: int  # of a head
    width: int  # d
    eps: float  # of norms
    theta: float  # the base of rotary frequencies

    @classmethod
    def of(cls, config: dict[str, Any], weights: StoredWeights) -> TextWeights:
        """Read the sizes from a configuration. Raises `ModelUnavailable` if this graph cannot compute the model."""
        activation, rope = config.get("hidden_act", "silu"), config.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if activation != "silu" or kind != "default":
            raise ModelUnavailable(f"OpenVINO computes no language model with {activation} and {kind} positions here.")
        heads = int(config["num_attention_heads"])
        return cls(
            weights,
            _HEAD if _HEAD in weights else _EMBEDDINGS,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            dim=int(config.get("head_dim") or 128),
            width=int(config["hidden_size"]),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            theta=float(config["rope_theta"]),
        )

    @property
    def embedding(self) -> Weight:
        """Return the embeddings of all tokens, (vocabulary, d)."""
        return self.weights[_EMBEDDINGS]

    @property
    def layer_matrices(self) -> set[str]:
        return set(self.matrices()) - {HEAD}

    def matrices(self) -> Parts:
        """Return the weights of each matrix. Layers that read the same input are one matrix."""
        found: Parts = {HEAD: (self.head,)}
        for number in range(self.layers):
            attention, mlp = f"{_LAYERS}{number}.self_attn.", f"{_LAYERS}{number}.mlp."
            found[f"{number}.qkv"] = tuple(f"{attention}{one}_proj.weight" for one in "qkv")
            found[f"{number}.out"] = (f"{attention}o_proj.weight",)
            found[f"{number}.gate_up"] = (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")
            found[f"{number}.down"] = (f"{mlp}down_proj.weight",)
        return found


def own_format(parts: Sequence[Weight]) -> ov.Node:
    """Return a matrix from weights in the format of the checkpoint."""
    numbers = np.concatenate([part.numbers for part in parts])
    if parts[0].format == "F32":
        return ops.constant(numbers)
    own = ov.Tensor(numbers.view(np.uint16), list(numbers.shape), _OWN[parts[0].format])
    return ops.convert(ov.op.Constant(own, shared_memory=False), "f32")


def parameter(name: str, shape: Sequence[int], kind: ov.Type = ov.Type.f32) -> ov.Node:
    """Return an input of a graph."""
    found = ops.parameter(ov.PartialShape(list(shape)), kind, name)
    found.output(0).set_names({name})
    return found


def linear(x: ov.Node, matrix: ov.Node, weights: StoredWeights, names: Sequence[str]) -> ov.Node:
    """Return the product of rows of `x` with the matrix of some layers, and add the layers' biases."""
    y = ops.matmul(x, matrix, False, True)
    biases = [f"{name.removesuffix('weight')}bias" for name in names]
    if biases[0] not in weights:
        return y
    return ops.add(y, ops.constant(np.concatenate([weights[name].floats() for name in biases])))


def build(text: TextWeights, best: int, matrix: Matrix) -> ov.Model:
    """Return the graph of a language model with its head.

    Inputs: `embeds` (n, d); `cos` and `sin` (n, 1, dim) of each token's position; `places` (k,), the tokens whose
    logits are wanted; `max_context_len` (); `ROWS` and the pages of each layer, `key_cache.0` and `value_cache.0`
    onwards, as PagedAttention takes them. Outputs: logits (k, vocabulary); the `best` likeliest tokens (k, best), in
    falling order; the logarithm of the sum of all exponentials (k, 1); the last hidden states (k, d).
    """
    graph = _Graph(text, matrix)
    x = graph.embeds
    for number in range(text.layers):
        x = graph.layer(number, x)
    x = graph.norm(ops.gather(x, graph.places, _int64(0)), _NORM)
    logits = ops.matmul(x, matrix(HEAD), False, True)
    likeliest = ops.topk(logits, _int64(best), -1, "max", "value", "i32")
    largest = ops.reduce_max(logits, _int64(-1), True)
    total = ops.reduce_sum(ops.exp(ops.subtract(logits, largest)), _int64(-1), True)
    lse = ops.add(largest, ops.log(total))
    outputs = [logits.output(0), likeliest.output(1), lse.output(0), x.output(0)]
    return ov.Model(outputs, graph.parameters, "language model")


class _Graph:
    """The inputs of a graph, and its layers."""

    def __init__(self, text: TextWeights, matrix: Matrix) -> None:
        self._text, self._matrix, self._parts = text, matrix, text.matrices()
        self.parameters: list[ov.Node] = []
        self.embeds = self._input("embeds", [-1, text.width], ov.Type.f32)
        self._cos = self._input("cos", [-1, 1, text.dim], ov.Type.f32)
        self._sin = self._input("sin", [-1, 1, text.dim], ov.Type.f32)
        self.places = self._input("places", [-1], ov.Type.i64)
        self._rows = [self._input(name, [-1], ov.Type.i32) for name in ROWS]
        self._longest = self._input("max_context_len", [], ov.Type.i32)

    def _input(self, name: str, shape: Sequence[int], kind: ov.Type) -> ov.Node:
        self.parameters.append(parameter(name, shape, kind))
        return self.parameters[-1]

    def layer(self, number: int, x: ov.Node) -> ov.Node:
        """Return the states (n, d) after a layer."""
        text, prefix = self._text, f"{_LAYERS}{number}."
        qkv = self._linear(self.norm(x, f"{prefix}input_layernorm.weight"), f"{number}.qkv")
        widths = [text.heads * text.dim, *[text.kv_heads * text.dim] * 2]
        q, k, v = ops.variadic_split(qkv, _int64(-1), ops.constant(np.array(widths))).outputs()
        q, k = (self._rotated(part, f"{prefix}self_attn.{name}_norm.weight") for part, name in ((q, "q"), (k, "k")))
        x = ops.add(x, self._linear(self._attention(number, q, k, v), f"{number}.out"))
        both = self._linear(self.norm(x, f"{prefix}post_attention_layernorm.weight"), f"{number}.gate_up")
        gate, up = ops.split(both, _int64(-1), 2).outputs()
        return ops.add(x, self._linear(ops.multiply(ops.swish(gate), up), f"{number}.down"))

    def norm(self, x: ov.Node, name: str) -> ov.Node:
        """RMS norm over the last axis."""
        mean = ops.reduce_mean(ops.power(x, _float(2)), _int64(-1), True)
        inverse = ops.divide(_float(1), ops.sqrt(ops.add(mean, _float(self._text.eps))))
        return ops.multiply(ops.multiply(x, inverse), ops.constant(self._text.weights[name].floats()))

    def _linear(self, x: ov.Node, name: str) -> ov.Node:
        return linear(x, self._matrix(name), self._text.weights, self._parts[name])

    def _rotated(self, x: ov.Output, name: str) -> ov.Node:
        """Return heads (n, heads * dim), normalised and rotated by their positions."""
        heads = self.norm(ops.reshape(x, ops.constant(np.array([0, -1, self._text.dim])), True), name)
        first, second = ops.split(heads, _int64(-1), 2).outputs()
        # The first half of the given sine is negated.
        y = ops.add(ops.multiply(heads, self._cos), ops.multiply(ops.concat([second, first], -1), self._sin))
        return ops.reshape(y, ops.constant(np.array([0, x.get_partial_shape()[1].get_length()])), True)

    def _attention(self, number: int, q: ov.Node, k: ov.Node, v: ov.Output) -> ov.Output:
        """Write keys and values to each row's pages. Return causal attention over them, (n, heads * dim)."""
        text = self._text
        shape = [-1, text.kv_heads, -1, -1]
        pages = [self._input(f"{kind}_cache.{number}", shape, ov.Type.dynamic) for kind in ("key", "value")]
        given = [q, k, v, *pages, *self._rows, _float(text.dim**-0.5), _int32(0), _none(np.float32), self._longest]
        # The other inputs are for windows of attention, for evicting and rotating pages, and for sparse attention.
        given += [_none(np.int32), _none(np.int32), _none(np.int32), _none(np.float32), _none(np.float32), _int32(0)]
        given += [_int32(8), ops.constant(np.zeros((0, 0, 0, 0), np.float32)), _int32(0)]
        given += [*(_none(np.int32) for _ in range(4)), _none(np.uint8), _none(np.int32)]
        node = PagedAttention([one if isinstance(one, ov.Output) else one.output(0) for one in given])
        for name in ("num_k_heads", "num_v_heads"):
            node.get_rt_info()[name] = text.kv_heads
        for name in ("k_head_size", "v_head_size"):
            node.get_rt_info()[name] = text.dim
        return node.output(0)


def _none(kind: type[np.generic]) -> ov.Node:
    return ops.constant(np.zeros(0, kind))


def _float(value: float) -> ov.Node:
    return ops.constant(np.float32(value))


def _int32(value: int) -> ov.Node:
    return ops.constant(np.int32(value))


def _int64(value: int) -> ov.Node:
    return ops.constant(np.int64(value))
