"""The decoder in float32. Each row has its own arrays of keys and values; all other work is done for all rows at once.

The layers are those of Moonshine (Jeffries et al. 2024, arXiv 2410.15608): self-attention with rotary positions on 32
of the 36 dimensions of a head, attention to the encoder's states, and a gated SiLU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asr_server.features.moonshine.weights import Array, DecoderWeights, LayerWeights

HEADS = 8
_ROTATED = 32
_ROTARY_BASE = 10_000.0
_NORM_EPSILON = 1e-5


class RowCache:
    """Keys and values of one row, (heads, tokens, head dimension) for each layer. `length`: tokens that count."""

    def __init__(self, cross: Sequence[tuple[Array, Array]], capacity: int) -> None:
        self.cross = cross
        heads, _, dim = cross[0][0].shape
        self.keys = [np.empty((heads, capacity, dim), np.float32) for _ in cross]
        self.values = [np.empty((heads, capacity, dim), np.float32) for _ in cross]
        self.length = 0

    @property
    def frames(self) -> int:
        return len(self.cross[0][0][0])


# Rows with their slices of a pass's tokens; cosines and sines of the tokens' positions.
Spans = Sequence[tuple[RowCache, slice]]
Rotation = tuple[Array, Array]


class TokenDecoder:
    """Runs tokens of several rows in one pass. A row's numbers do not depend on the others beyond float32 rounding."""

    def __init__(self, weights: DecoderWeights) -> None:
        self._weights = weights
        self._width = len(weights.norm)
        self._dim = self._width // HEADS
        self._rates = _ROTARY_BASE ** -(np.arange(0, _ROTATED, 2) / _ROTATED)

    @property
    def vocabulary(self) -> int:
        return len(self._weights.embedding)

    def cache(self, states: Array, capacity: int) -> RowCache:
        """Return a row over the encoder's states (frames, d), with space for `capacity` tokens."""
        cross = [self._split(states @ layer.cross_kv, 2) for layer in self._weights.layers]
        return RowCache([(keys, values) for keys, values in cross], capacity)

    def row_bytes(self, frames: int, tokens: int) -> int:
        return 2 * len(self._weights.layers) * self._width * 4 * (frames + tokens)

    def forward(
        self, rows: Sequence[RowCache], ids: Sequence[Sequence[int]], attention: list[Array] | None = None
    ) -> Array:
        """Append each row's `ids` after its `length` and return logits (all ids, vocabulary), in order.

        `length` stays as it is: the caller decides how many of the tokens count. `attention` receives for each layer
        and row the attention to the audio, (heads, ids, frames).
        """
        hidden = self._weights.embedding[[token for own in ids for token in own]]
        ends = np.cumsum([len(own) for own in ids])
        spans = [(row, slice(end - len(own), end)) for row, end, own in zip(rows, ends.tolist(), ids, strict=True)]
        positions = np.concatenate([row.length + np.arange(len(own)) for row, own in zip(rows, ids, strict=True)])
        angles = np.repeat(positions[:, None] * self._rates, 2, axis=1).astype(np.float32)
        rotation = np.cos(angles), np.sin(angles)
        for number, layer in enumerate(self._weights.layers):
            hidden = hidden + self._attend_self(number, layer, _norm(hidden, layer.self_norm), spans, rotation)
            normal = _norm(hidden, layer.cross_norm)
            hidden = hidden + self._attend_cross(number, layer, normal, spans, attention)
            hidden = hidden + _feed_forward(layer, _norm(hidden, layer.mlp_norm))
        return _norm(hidden, self._weights.norm) @ self._weights.embedding.T

    def _attend_self(self, number: int, layer: LayerWeights, hidden: Array, spans: Spans, rotation: Rotation) -> Array:
        queries, keys, values = self._split(hidden @ layer.qkv, 3)
        queries, keys = _rotate(queries, *rotation), _rotate(keys, *rotation)
        mixed = np.empty_like(queries)
        for row, part in spans:
            count = part.stop - part.start
            end = row.length + count
            row.keys[number][:, row.length : end] = keys[:, part]
            row.values[number][:, row.length : end] = values[:, part]
            scores = self._scores(queries[:, part], row.keys[number][:, :end])
            if count > 1:  # a token does not see later tokens
                scores += np.triu(np.full((count, end), -np.inf, np.float32), row.length + 1)
            mixed[:, part] = _softmax(scores) @ row.values[number][:, :end]
        return self._joined(mixed) @ layer.out

    def _attend_cross(
        self, number: int, layer: LayerWeights, hidden: Array, spans: Spans, attention: list[Array] | None
    ) -> Array:
        (queries,) = self._split(hidden @ layer.cross_q, 1)
        mixed = np.empty_like(queries)
        for row, part in spans:
            keys, values = row.cross[number]
            shares = _softmax(self._scores(queries[:, part], keys))
            mixed[:, part] = shares @ values
            if attention is not None:
                attention.append(shares)
        return self._joined(mixed) @ layer.cross_out

    def _scores(self, queries: Array, keys: Array) -> Array:
        return queries @ keys.transpose(0, 2, 1) * np.float32(self._dim**-0.5)

    def _split(self, projected: Array, count: int) -> Array:
        """(tokens, count d) to (count, heads, tokens, head dimension)."""
        split = projected.reshape(len(projected), count, HEADS, self._dim)
        return np.ascontiguousarray(split.transpose(1, 2, 0, 3))

    def _joined(self, heads: Array) -> Array:
        """(heads, tokens, head dimension) to (tokens, d)."""
        return heads.transpose(1, 0, 2).reshape(-1, self._width)


def _feed_forward(layer: LayerWeights, hidden: Array) -> Array:
    value, gate = np.split(hidden @ layer.up + layer.up_bias, 2, axis=1)
    out: Array = (value * gate / (1 + np.exp(-gate))) @ layer.down + layer.down_bias
    return out


def _norm(hidden: Array, weight: Array) -> Array:
    """Layer normalization without a bias."""
    centred = hidden - hidden.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    normal: Array = centred / np.sqrt(variance + np.float32(_NORM_EPSILON)) * weight
    return normal


def _rotate(heads: Array, cosines: Array, sines: Array) -> Array:
    """Rotary positions on pairs of neighbouring dimensions (Su et al. 2021, arXiv 2104.09864)."""
    turned = heads[..., :_ROTATED]
    across = np.stack([-turned[..., 1::2], turned[..., ::2]], axis=-1).reshape(turned.shape)
    return np.concatenate([turned * cosines + across * sines, heads[..., _ROTATED:]], axis=-1)


def _softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Array = weights / weights.sum(-1, keepdims=True)
    return shares
