"""The audio encoder as two graphs, from the weights of a checkpoint: pieces to states, and windows of states to
embeddings. `engine.qwen_asr.encoder` is the same in torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.openvino.text_graph import Matrix, Parts, linear, parameter
from asr_server.engine.weights import StoredWeights

_PREFIX = "thinker.audio_tower."
_CONVOLUTIONS = ("conv2d1", "conv2d2", "conv2d3")
_EPS = 1e-5  # torch's default for its norms
_TIMESCALE = 10_000.0


@dataclass(frozen=True, slots=True, eq=False)
class EncoderWeights:
    """The weights of an encoder."""

    weights: StoredWeights
    layers: int
    heads: int
    width: int  # d_model
    bins: int

    @classmethod
    def of(cls, config: dict[str, Any], weights: StoredWeights) -> EncoderWeights:
        """Read the sizes from a configuration. Raises `ModelUnavailable` if these graphs cannot compute the encoder."""
        activation = config.get("activation_function", "gelu")
        if activation != "gelu":
            raise ModelUnavailable(f"An encoder with {activation} runs with RUNTIME=torch.")
        layers, heads, width = (int(config[name]) for name in ("encoder_layers", "encoder_attention_heads", "d_model"))
        return cls(weights, layers, heads, width, int(config.get("num_mel_bins", 128)))

    def matrices(self) -> Parts:
        """Return the weights of each matrix. Layers that read the same input are one matrix."""
        found: Parts = {f"encoder.{name}": (f"{_PREFIX}{name}.weight",) for name in ("conv_out", "proj1", "proj2")}
        for number in range(self.layers):
            layer = f"{_PREFIX}layers.{number}."
            found[f"encoder.{number}.qkv"] = tuple(f"{layer}self_attn.{one}_proj.weight" for one in "qkv")
            found[f"encoder.{number}.out"] = (f"{layer}self_attn.out_proj.weight",)
            found[f"encoder.{number}.up"] = (f"{layer}fc1.weight",)
            found[f"encoder.{number}.down"] = (f"{layer}fc2.weight",)
        return found

    def positions(self, tokens: int) -> NDArray[np.float32]:
        """Return the position embeddings that are added to the states of a piece, (tokens, d_model): sines, then
        cosines, of frequencies that fall by equal factors to a 10,000th."""
        count = self.width // 2
        frequencies = np.exp(-np.log(_TIMESCALE) / (count - 1) * np.arange(count, dtype=np.float32))
        angles = np.arange(tokens, dtype=np.float32)[:, None] * frequencies
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def pieces(encoder: EncoderWeights, matrix: Matrix) -> ov.Model:
    """Return the graph that computes the states (n, t, d_model) of pieces of equal length from `mel` (n, 1, bins, T)
    and `positions` (t, d_model), t = ceil(T / 8)."""
    mel = parameter("mel", [-1, 1, encoder.bins, -1])
    positions = parameter("positions", [-1, encoder.width])
    x = mel
    for name in _CONVOLUTIONS:
        kernel, bias = (encoder.weights[f"{_PREFIX}{name}.{part}"].floats() for part in ("weight", "bias"))
        x = ops.convolution(x, ops.constant(kernel), [2, 2], [1, 1], [1, 1], [1, 1])
        x = ops.gelu(ops.add(x, ops.constant(bias.reshape(1, -1, 1, 1))), "erf")
    # (n, channels, bins, t) to (n, t, channels * bins).
    x = ops.transpose(x, ops.constant(np.array([0, 3, 1, 2])))
    x = ops.reshape(x, ops.constant(np.array([0, 0, -1])), True)
    name = "encoder.conv_out"
    x = linear(x, matrix(name), encoder.weights, encoder.matrices()[name])
    return ov.Model([ops.add(x, positions)], [mel, positions], "pieces")


def windows(encoder: EncoderWeights, matrix: Matrix) -> ov.Model:
    """Return the graph that computes embeddings (W, n, output_dim) from `states` (W, n, d_model) and `mask`
    (W or 1, 1, 1, n), which is added to the scores."""
    states, mask = parameter("states", [-1, -1, encoder.width]), parameter("mask", [-1, 1, 1, -1])
    parts, weights = encoder.matrices(), encoder.weights

    def product(x: ov.Node, name: str) -> ov.Node:
        return linear(x, matrix(f"encoder.{name}"), weights, parts[f"encoder.{name}"])

    def norm(x: ov.Node, name: str) -> ov.Node:
        weight, bias = (ops.constant(weights[f"{_PREFIX}{name}.{part}"].floats()) for part in ("weight", "bias"))
        x = ops.mvn(x, ops.constant(np.array([-1])), True, _EPS, "inside_sqrt")
        return ops.add(ops.multiply(x, weight), bias)

    # (W, n, heads, dim) to (W, heads, n, dim), and back.
    swap = ops.constant(np.array([0, 2, 1, 3]))
    x = states
    for number in range(encoder.layers):
        layer = f"layers.{number}."
        both = product(norm(x, f"{layer}self_attn_layer_norm"), f"{number}.qkv")
        heads = ops.constant(np.array([0, 0, encoder.heads, -1]))
        q, k, v = (
            ops.transpose(ops.reshape(part, heads, True), swap)
            for part in ops.split(both, ops.constant(np.int64(-1)), 3).outputs()
        )
        h = ops.scaled_dot_product_attention(q, k, v, mask, causal=False)
        h = ops.reshape(ops.transpose(h, swap), ops.constant(np.array([0, 0, -1])), True)
        x = ops.add(x, product(h, f"{number}.out"))
        up = ops.gelu(product(norm(x, f"{layer}final_layer_norm"), f"{number}.up"), "erf")
        x = ops.add(x, product(up, f"{number}.down"))
    x = product(ops.gelu(product(norm(x, "ln_post"), "proj1"), "erf"), "proj2")
    return ov.Model([x], [states, mask], "windows")
