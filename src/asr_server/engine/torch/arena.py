"""Keys and values of all rows in one buffer, made once at load and never moved.

The buffer is divided into slots of equal length, one for each row. Where rows need longer slots there are fewer of
them: the buffer is divided anew in place, and what rows hold is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Lengths of slots, and of what a pass looks at, are one and a half or one times a power of two, and at least this: few
# different shapes for kernels to be chosen for.
_SHORTEST = 256


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of a language model's attention."""

    layers: int
    heads: int  # heads of queries
    kv_heads: int  # heads of keys and of values
    dim: int  # the size of a head

    @property
    def groups(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.kv_heads

    def token_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values for one token."""
        return 2 * self.layers * self.kv_heads * self.dim * dtype.itemsize

    @classmethod
    def of(cls, config: Any) -> AttentionShape:
        """Read the shape from a language model's configuration."""
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(config.num_hidden_layers, heads, config.num_key_value_heads, int(dim))


class Arena:
    """Room for `tokens` tokens, divided into `slots` of `columns`.

    The last column of a slot is never a row's: passes that are padded to more rows write there.
    """

    def __init__(self, shape: AttentionShape, tokens: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.shape = shape
        self.tokens = tokens
        self._flat = _zeros((shape.layers, 2, tokens * shape.kv_heads * shape.dim), device, dtype)
        self.slots = self.columns = 0
        self._divided = self._view(0, 0)

    @property
    def device(self) -> torch.device:
        """Return where the buffer is."""
        return self._flat.device

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer; on a CPU the system provides them when they are first written."""
        return self._flat.nbytes

    @property
    def dtype(self) -> torch.dtype:
        """Return the format of keys and values."""
        return self._flat.dtype

    def divide(self, slots: int, columns: int, held: Sequence[int]) -> None:
        """Make it `slots` slots of `columns`; the first of them keep their first `held` tokens, which must fit."""
        if (slots, columns) == (self.slots, self.columns):
            return
        divided = self._view(slots, columns)
        for layer, old in zip(divided, self._divided, strict=True):
            # A layer at a time, all of it read before it is written: old and new slots overlap.
            kept = [old[:, slot, :, :tokens].clone() for slot, tokens in enumerate(held)]
            # A NaN must not stay where only a mask hides it.
            for slot, tokens in enumerate(held):
                old[:, slot, :, :tokens] = 0
            for slot, (tokens, part) in enumerate(zip(held, kept, strict=True)):
                layer[:, slot, :, :tokens] = part
        self.slots, self.columns, self._divided = slots, columns, divided

    def _view(self, slots: int, columns: int) -> torch.Tensor:
        heads, dim = self.shape.kv_heads, self.shape.dim
        return self._flat[:, :, : slots * heads * columns * dim].view(self.shape.layers, 2, slots, heads, columns, dim)

    def layer(self, number: int) -> torch.Tensor:
        """Keys and values of one layer, (2, slots, kv_heads, columns, dim), as a view."""
        return self._divided[number]

    def clear(self, slot: int, tokens: int) -> None:
        """Zero the first `tokens` of a slot, and the column for padding: a mask hides any number, but not what is none.

        Not all of the slot: on a CPU its memory is taken by being written, and slots may be long.
        """
        self._divided[:, :, slot, :, :tokens] = 0
        self._divided[:, :, slot, :, -1] = 0

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot over another."""
        self._divided[:, :, target, :, :tokens] = self._divided[:, :, source, :, :tokens]

    def swap(self, one: int, other: int, tokens: int) -> None:
        """Exchange the first `tokens` of two slots."""
        kept = self.copy(one, tokens)
        self.move(other, one, tokens)
        self.put(other, kept)

    def copy(self, slot: int, tokens: int) -> torch.Tensor:
        """Return the first `tokens` of a slot, (layers, 2, kv_heads, tokens, dim)."""
        return self._divided[:, :, slot, :, :tokens].clone()

    def put(self, slot: int, kept: torch.Tensor) -> None:
        """Write keys and values that `copy` returned to the start of a slot."""
        self._divided[:, :, slot, :, : kept.shape[3]] = kept


def rounded(tokens: int) -> int:
    """Return the length that `tokens` are padded to: 256, 512, 768, 1024, 1536, 2048, 3072, ..."""
    if tokens <= _SHORTEST:
        return _SHORTEST
    power = 1 << (tokens - 1).bit_length()
    shorter = power * 3 // 4
    return shorter if tokens <= shorter else power


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros. On a CPU the memory is not touched: most of it is needed by long prompts only."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
