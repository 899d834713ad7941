"""Keys and values of many rows in one buffer per layer, each at its own length. Who sits where is the decoder's.

A slot is a row of the buffer. Before a forward pass the decoder says which slots and positions the pass is about;
`update`, called by the SDK's attention layers, writes there and returns the slots' buffers up to a common bucket,
and the mask hides what does not belong to a row.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

# Lengths grow in steps of this many tokens: few different shapes, little wasted attention.
BUCKET_TOKENS = 128


class SlotCache(Cache):
    """Static key and value buffers (slots, kv_heads, tokens, head_dim) per layer, grown by doubling."""

    def __init__(self, config: Any, *, device: torch.device, dtype: torch.dtype) -> None:
        # The base class manages per-layer objects of its own; none of them is wanted here.
        super().__init__(layers=[])
        self._shape = (config.num_key_value_heads, getattr(config, "head_dim", None) or _head_dim(config))
        self._device, self._dtype = device, dtype
        self._keys = [self._empty(0, 0) for _ in range(config.num_hidden_layers)]
        self._values = [self._empty(0, 0) for _ in range(config.num_hidden_layers)]
        self._slots = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)
        self._width = 0

    def _empty(self, slots: int, tokens: int) -> torch.Tensor:
        heads, dim = self._shape
        return torch.zeros(slots, heads, tokens, dim, device=self._device, dtype=self._dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(t.numel() * t.element_size() for t in (*self._keys, *self._values))

    def reserve(self, slots: int, tokens: int) -> None:
        """Make room for that many slots of that many tokens; what is stored stays."""
        have_slots, _, have_tokens, _ = self._keys[0].shape
        if slots <= have_slots and tokens <= have_tokens:
            return
        new_slots = max(have_slots, slots)
        new_tokens = have_tokens if tokens <= have_tokens else bucket(max(tokens, min(2 * have_tokens, 2 * tokens)))
        for buffers in (self._keys, self._values):
            for i, old in enumerate(buffers):
                buffers[i] = self._empty(new_slots, new_tokens)
                buffers[i][:have_slots, :, :have_tokens] = old

    def aim(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Say what the next forward pass is about, and get its mask.

        `slots` (b,) are the rows; `positions` (b, q) where their q new tokens stand. Returns a boolean mask
        (b, 1, q, width), True where a query may look.
        """
        self._slots, self._positions = slots, positions
        self._width = bucket(int(positions.max()) + 1)
        columns = torch.arange(self._width, device=positions.device)
        return (columns <= positions[:, :, None])[:, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, cache_kwargs: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (b, heads, q, dim) at the aimed places; return (b, heads, width, dim) of the aimed slots."""
        rows, where = self._slots[:, None], self._positions
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[rows, :, where] = key_states.transpose(1, 2)
        values[rows, :, where] = value_states.transpose(1, 2)
        return self._seen(keys), self._seen(values)

    def _seen(self, buffer: torch.Tensor) -> torch.Tensor:
        first, count = int(self._slots[0]), len(self._slots)
        # The decoder keeps its rows together at the front, so that this is a view and never a copy.
        return buffer[first : first + count, :, : self._width]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` of one slot over another."""
        for buffer in (*self._keys, *self._values):
            buffer[target, :, :tokens] = buffer[source, :, :tokens]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Unused: positions are always given explicitly."""
        return self._width


def bucket(tokens: int) -> int:
    """`tokens` rounded up to a whole bucket."""
    return -(-tokens // BUCKET_TOKENS) * BUCKET_TOKENS


def _head_dim(config: Any) -> int:
    return int(config.hidden_size // config.num_attention_heads)
