"""Keys and values of many rows in one buffer per layer, each at its own length. Who sits where is the decoder's.

A slot is a row of the buffer. Before a forward pass the decoder says which slots and positions the pass is about;
`update`, called by the SDK's attention layers, writes there and returns the slots' buffers up to a common bucket,
and the mask hides what does not belong to a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from asr_server.engine.qwen.sdk import ALL_ATTENTION_FUNCTIONS, Cache

# Lengths grow in steps of this many tokens: few different shapes, little wasted attention.
BUCKET_TOKENS = 128
ATTENTION = "asr_slots"
# The position of a query that is only there to make rows of one pass equally long.
PADDING = -1

# Keys and values of consecutive tokens of one row, layer by layer: [(heads, tokens, dim), ...] twice.
KeysValues = tuple[list[torch.Tensor], list[torch.Tensor]]


class SlotCache(Cache):
    """Static key and value buffers (slots, kv_heads, tokens, head_dim) per layer; remade only by `reserve`."""

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        # The base class manages per-layer objects of its own; none of them is wanted here.
        super().__init__(layers=[])
        self._shape = (config.num_key_value_heads, getattr(config, "head_dim", None) or _head_dim(config))
        self._device, self._dtype = device, dtype
        self._keys = [self._empty(0, 0) for _ in range(config.num_hidden_layers)]
        self._values = [self._empty(0, 0) for _ in range(config.num_hidden_layers)]
        self._slots = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)
        self._first, self._width = 0, 0
        self._size = (0, 0)

    def _empty(self, slots: int, tokens: int) -> torch.Tensor:
        heads, dim = self._shape
        return torch.zeros(slots, heads, tokens, dim, device=self._device, dtype=self._dtype)

    @property
    def slots(self) -> int:
        """Rows of the buffers."""
        return self._size[0]

    @property
    def tokens(self) -> int:
        """Columns of the buffers. The last one is never a row's: padding is written there."""
        return self._size[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(t.numel() * t.element_size() for t in (*self._keys, *self._values))

    def reserve(self, slots: int, tokens: int, keep: int) -> None:
        """Make the buffers that many slots of that many tokens; the first `keep` slots keep what they hold."""
        if (slots, tokens) == (self.slots, self.tokens):
            return
        # What every buffer has for certain, should memory run out between two of them.
        self._size = (min(self.slots, slots), min(self.tokens, tokens))
        for buffers in (self._keys, self._values):
            for i, old in enumerate(buffers):
                made, have = self._empty(slots, tokens), min(old.shape[2], tokens)
                made[:keep, :, :have] = old[:keep, :, :have]
                buffers[i] = made
        self._size = (slots, tokens)

    def aim(self, first: int, positions: torch.Tensor) -> torch.Tensor:
        """Say what the next forward pass is about, and get its mask.

        The pass is about slots `first` .. `first + b`; `positions` (b, q) are where their new tokens stand, `PADDING`
        for the rest. Returns a boolean mask (b, 1, q, width), True where a query may look.
        """
        count = len(positions)
        self._first, self._slots = first, torch.arange(first, first + count, device=positions.device)
        self._width = min(bucket(int(positions.max()) + 1), self.tokens)
        self._positions = positions.where(positions != PADDING, self.tokens - 1)
        columns = torch.arange(self._width, device=positions.device)
        return (columns <= self._positions[:, :, None])[:, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, cache_kwargs: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (b, heads, q, dim) at the aimed places; return (b, heads, width, dim) of the aimed slots, as views."""
        rows, where = self._slots[:, None], self._positions
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[rows, :, where] = key_states.transpose(1, 2)
        values[rows, :, where] = value_states.transpose(1, 2)
        seen = slice(self._first, self._first + len(self._slots))
        return keys[seen, :, : self._width], values[seen, :, : self._width]

    def clear(self, slot: int) -> None:
        """Make a slot as it was made: a mask hides any number, but not what is none."""
        for buffer in (*self._keys, *self._values):
            buffer[slot] = 0

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot over another."""
        for buffer in (*self._keys, *self._values):
            buffer[target, :, :tokens] = buffer[source, :, :tokens]

    def read(self, slot: int, start: int, end: int) -> KeysValues:
        """A copy of what a slot holds at positions [start, end)."""
        keys, values = ([b[slot, :, start:end].clone() for b in buffers] for buffers in (self._keys, self._values))
        return keys, values

    def write(self, slot: int, start: int, kv: KeysValues) -> None:
        """Put back what `read` gave, at positions from `start` on."""
        for buffers, layers in zip((self._keys, self._values), kv, strict=True):
            for buffer, part in zip(buffers, layers, strict=True):
                buffer[slot, :, start : start + part.shape[1]] = part

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Unused: positions are always given explicitly."""
        return self._width


def bucket(tokens: int) -> int:
    """`tokens` rounded up to a whole bucket."""
    return -(-tokens // BUCKET_TOKENS) * BUCKET_TOKENS


def _head_dim(config: Any) -> int:
    return int(config.hidden_size // config.num_attention_heads)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention on grouped heads; the stock function first copies all keys and values per group."""
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attend)
