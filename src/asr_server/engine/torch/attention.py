"""Attention of packed tokens over rows in one buffer, where a row's keys and values are contiguous. In three ways.

Each takes queries (n, heads, dim), row after row, and the keys and values (places, kv_heads, dim) of a layer. It
returns (n, heads * dim). A token sees the places of its row up to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional as F

# FlashAttention of torch's builds for GPUs, which has had these arguments since torch 2.5. `varlen_attn` of torch 2.13
# calls it too, but each call also clears a tensor that nobody reads; in torch 2.11 it lacks arguments needed here.
flash = torch.ops.aten._flash_attention_forward  # noqa: SLF001

# The most queries in one call. Bounds the memory of their mask: 32 MiB with 16,384 keys in 16 bits.
_MOST_QUERIES = 1024


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of one row that are run in a pass."""

    begin: int  # the row's first place
    start: int  # position of the first token
    count: int  # tokens from there on

    @property
    def end(self) -> int:
        return self.start + self.count


class Numbers(NamedTuple):
    """The numbers of a pass, int64 on its device."""

    ids: torch.Tensor  # (n,) of the tokens, empty if they are given as embeddings
    positions: torch.Tensor  # (n,) of the tokens in their rows
    places: torch.Tensor  # (n,) of their keys and values
    begins: torch.Tensor  # (rows,) the first place of each row
    used: torch.Tensor  # (rows,) how many places of each row are used from there on, the tokens' own included
    ends: torch.Tensor  # (rows + 1,) how many tokens the rows before each row have, and how many all have
    gather: torch.Tensor  # (rows * query,) the token at each position, if rows are padded to `query` tokens
    scatter: torch.Tensor  # (n,) the position of each token among these


class EachRow:
    """Attends row by row, without padding or copies. Only tokens that continue a prompt need a mask."""

    def __init__(self, rows: Sequence[TokenSpan]) -> None:
        self._parts = [
            TokenSpan(row.begin, start, min(row.end - start, _MOST_QUERIES))
            for row in rows
            for start in range(row.start, row.end, _MOST_QUERIES)
        ]

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See the module."""
        of_parts = q.split([part.count for part in self._parts])
        seen = [slice(part.begin, part.begin + part.end) for part in self._parts]
        return torch.cat([_of_one(part, keys[at], values[at]) for part, at in zip(of_parts, seen, strict=True)])


def _of_one(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the attention of a row's last tokens over the whole row.

    Heads that share keys become further queries if there is a single token, and else further items of a batch: with
    more heads of queries than of keys, kernels would copy the keys or refuse.
    """
    count, kv_heads = len(q), keys.shape[1]
    k, v = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    if count == 1:
        return F.scaled_dot_product_attention(q.unflatten(1, (kv_heads, -1)), k, v).flatten(1)
    queries = q.unflatten(1, (kv_heads, -1)).permute(2, 1, 0, 3)
    k, v = (held.expand(len(queries), -1, -1, -1) for held in (k, v))
    before = len(keys) - count
    mask = q.new_full((count, len(keys)), -torch.inf).triu_(before + 1) if before else None
    out = F.scaled_dot_product_attention(queries, k, v, attn_mask=mask, is_causal=mask is None)
    return out.permute(2, 1, 0, 3).flatten(1)


class Masked:
    """Attends in one call to rows that are padded to equal sizes, as recorded passes need it.

    `query`: tokens of each row with padding; `width`: places that they see with padding. `stride`: places from the
    first of a row to the first of the next; 0 if rows are anywhere, so that the places they see are copied.
    """

    def __init__(
        self, numbers: Numbers, query: int, width: int, stride: int, *, groups: int, dtype: torch.dtype
    ) -> None:
        columns, rows = torch.arange(width, device=numbers.places.device), len(numbers.begins)
        self._query, self._width, self._stride = query, width, stride
        self._gather, self._scatter = numbers.gather, numbers.scatter
        # Past its last used place a row copies that one again: the mask then only hides the row's own numbers.
        self._places = numbers.begins[:, None] + columns.minimum(numbers.used[:, None] - 1)
        hidden = columns > numbers.positions[self._gather][:, None]
        mask = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf).view(rows, 1, query, width)
        self._mask = mask.repeat_interleave(groups, 2) if query > 1 else mask

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See the module. The heads that share keys become further queries."""
        query, kv_heads = self._query, keys.shape[1]
        q = q[self._gather]
        q = q.view(-1, query, kv_heads, q.shape[1] // kv_heads, q.shape[2]).transpose(1, 2).flatten(2, 3)
        out = F.scaled_dot_product_attention(q, self._seen(keys), self._seen(values), attn_mask=self._mask)
        return out.unflatten(2, (query, -1)).transpose(1, 2).flatten(2).flatten(0, 1)[self._scatter]

    def _seen(self, held: torch.Tensor) -> torch.Tensor:
        """Return what the rows see, (rows, kv_heads, width, dim)."""
        if not self._stride:
            return held[self._places].transpose(1, 2)
        rows = len(self._places)
        return held[: rows * self._stride].unflatten(0, (rows, -1))[:, : self._width].transpose(1, 2)


class VariableLength:
    """Attends in one call to rows of any lengths, with FlashAttention, which reads only their own places.

    `query`: the most tokens of a row; `width`: the most places that they see.
    """

    def __init__(self, numbers: Numbers, query: int, width: int) -> None:
        self._ends, self._used = numbers.ends.int(), numbers.used.int()
        self._begins = F.pad(numbers.begins.int(), (0, 1))  # one more than there are rows; it is not read
        self._query, self._width = query, width

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See the module."""
        # A single token sees the whole row. Without a limit the kernel shares keys between heads and splits long rows.
        right = -1 if self._query == 1 else 0
        numbers = self._ends, self._begins, self._query, self._width
        out: torch.Tensor = flash(
            *(q, keys, values, *numbers, 0.0, False, False),
            window_size_left=-1,
            window_size_right=right,
            seqused_k=self._used,
        )[0]
        return out.flatten(1)
