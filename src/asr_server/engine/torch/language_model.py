"""The language model's layers as one loop over the SDK's weights. `Qwen3ASRThinkerTextModel.forward` is the reference.

Tokens of all rows of a pass are packed, (n, d): only attention sees rows. Projections that read the same input are one
matrix. Rotary positions are looked up in a table: the three axes of the model's positions are equal for text and audio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional as F

from asr_server.engine.torch.linear import Linear, MakeLinear, plain, stacked

# Cosine and sine (n, dim) of the tokens' positions; see `rotary_table`.
Angles = tuple[torch.Tensor, torch.Tensor]


class Room(NamedTuple):
    """The places to which a pass's tokens write their keys and values of a layer."""

    keys: torch.Tensor  # (places, kv_heads, dim)
    values: torch.Tensor  # (places, kv_heads, dim)
    places: torch.Tensor  # (n,), of each token


class Attention(Protocol):
    """The attention of a pass. It knows where its tokens' keys and values are, and what the tokens see."""

    positions: torch.Tensor  # (n,) of the tokens in their rows

    def room(self, layer: int) -> Room:
        """Return where the keys and values of a layer are written."""

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """Return the attention (n, heads * dim) of queries (n, heads, dim). Keys and values must be written before."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The weights of a layer."""

    norm: torch.Tensor
    qkv: Linear  # queries, keys and values in one product
    head_weights: torch.Tensor  # (heads + kv_heads, dim): of the norms of queries and of keys
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear  # gate and up in one product
    down: Linear


class Operations(Protocol):
    """The operations between matrix products and attention, on whole rows."""

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return the RMS norm of x (n, d) times `weight` (d,)."""

    def added(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x + y (n, d), and its RMS norm times `weight` (d,)."""

    def heads(self, qkv: torch.Tensor, weights: torch.Tensor, angles: Angles, room: Room) -> torch.Tensor:
        """Norm and rotate queries and keys, write keys and values, and return the queries (n, heads, dim).

        `qkv` (n, (heads + 2 * kv_heads) * dim). `weights` (heads + kv_heads, dim): of the norms.
        """

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Return the activation of the first half of (n, 2 * m), times the second."""


class TorchOperations:
    """Implements each of `Operations` by several of torch's, whose calls cost more than their arithmetic.

    `compiled`: torch.compile fuses each to one operation, for all numbers of tokens, and again for a single token.
    """

    def __init__(self, activation: nn.Module, eps: float, *, compiled: bool = False) -> None:
        fused: Callable[[Any], Any] = partial(torch.compile, dynamic=True) if compiled else lambda function: function

        def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(x, x.shape[-1:], weight, eps)

        def added(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = x + y
            return x, F.rms_norm(x, x.shape[-1:], weight, eps)

        def rotated(qkv: torch.Tensor, weights: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            heads, dim = weights.shape
            qk = qkv[:, : heads * dim].unflatten(-1, (heads, dim))
            qk = F.rms_norm(qk, (dim,), None, eps) * weights
            return torch.addcmul(qk * cos[:, None], qk.roll(dim // 2, -1), sin[:, None])

        def gated(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, -1)
            return activation(gate) * up

        self.normed, self.added, self.rotated, self.gated = map(fused, (normed, added, rotated, gated))

    def heads(self, qkv: torch.Tensor, weights: torch.Tensor, angles: Angles, room: Room) -> torch.Tensor:
        """See `Operations`."""
        kv_heads, dim = room.values.shape[1:]
        qk = self.rotated(qkv, weights, *angles)
        room.keys[room.places] = qk[:, -kv_heads:]
        room.values[room.places] = qkv[:, -kv_heads * dim :].unflatten(-1, (kv_heads, dim))
        return qk[:, :-kv_heads]


class LanguageModel:
    """Takes the layers out of `text`, the SDK's module, which cannot be used afterwards.

    `on_layer` is called before each layer, since on a CPU a pass may take long.
    """

    def __init__(self, text: Any, make_linear: MakeLinear = plain, operations: Operations | None = None) -> None:
        """`operations`: used in place of torch's."""
        config = text.config
        self._small = operations or TorchOperations(text.layers[0].mlp.act_fn, config.rms_norm_eps)
        self.config = config
        self.on_layer: Callable[[], None] = lambda: None
        self._embedding: torch.Tensor = text.embed_tokens.weight
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._norm: torch.Tensor = text.norm.weight
        self._cos, self._sin = rotary_table(text)
        self._layers: list[_Layer] = []
        # One by one, so that only one layer at a time exists twice.
        for number, layer in enumerate(text.layers):
            self._layers.append(self._fused(layer, make_linear))
            text.layers[number] = nn.Identity()

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.dtype

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (n,) to embeddings (n, d)."""
        return F.embedding(ids, self._embedding)

    def __call__(self, x: torch.Tensor, attention: Attention) -> torch.Tensor:
        """Embeddings (n, d) to their last hidden states (n, d)."""
        (hidden,) = deque(self.by_layer(x, attention), maxlen=1)
        return hidden

    def by_layer(self, x: torch.Tensor, attention: Attention) -> Iterator[torch.Tensor]:
        """Yield the states after each layer, normalised, (n, d). The last ones are the hidden states."""
        angles = self._cos[attention.positions], self._sin[attention.positions]
        # Each sum is normalised at once, with the norm weights of its next reader.
        normed = self._small.normed(x, self._layers[0].norm)
        following = (*(layer.norm for layer in self._layers[1:]), self._norm)
        for number, (layer, norm) in enumerate(zip(self._layers, following, strict=True)):
            self.on_layer()
            qkv = layer.qkv(normed)
            q = self._small.heads(qkv, layer.head_weights, angles, attention.room(number))
            seen = attention.attend(number, q)
            x, normed = self._small.added(x, layer.out(seen), layer.mlp_norm)
            x, normed = self._small.added(x, layer.down(self._small.gated(layer.gate_up(normed))), norm)
            yield normed

    def _fused(self, layer: Any, make_linear: MakeLinear) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            norm=layer.input_layernorm.weight,
            qkv=make_linear(*stacked(attention.q_proj, attention.k_proj, attention.v_proj)),
            head_weights=torch.cat(
                [
                    attention.q_norm.weight.expand(self._heads, -1),
                    attention.k_norm.weight.expand(self._kv_heads, -1),
                ]
            ),
            out=make_linear(attention.o_proj.weight, attention.o_proj.bias),
            mlp_norm=layer.post_attention_layernorm.weight,
            gate_up=make_linear(*stacked(mlp.gate_proj, mlp.up_proj)),
            down=make_linear(mlp.down_proj.weight, mlp.down_proj.bias),
        )


def rotary_table(text: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cosine and sine (positions, dim) of every position, by the SDK's own formula.

    A pair (a, b) of halves turns into (a cos - b sin, b cos + a sin). The sine's first half is negated here, so that
    the result is x cos + roll(x) sin.
    """
    weight = text.embed_tokens.weight
    positions = torch.arange(text.config.max_position_embeddings, device=weight.device)
    cos, sin = text.rotary_emb(weight, positions.expand(3, 1, -1))
    half = sin.shape[-1] // 2
    return cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
