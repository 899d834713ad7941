"""The number of rows and tokens that fit, planned once at load. Pure; the memory is taken elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

# Tokens of the row that is planned for: 30 s of audio (390), 360 new tokens, 146 for the prompt around it.
ROW_TOKENS = 896
# The share of the memory that is free after the weights which keys and values may take without KV_BUDGET_MB;
# the rest is for activations, and on a CPU for everybody else, such as the aligner and the process that tells speakers
# apart, which takes 150 MB. On a GPU the aligner's memory is left out before. Rows take half of it at most, live
# sessions the rest.
_SHARE = {"cuda": 0.6, "cpu": 0.25}
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the plan sets."""

    max_batch: int  # the most rows
    kv_budget_mb: int = 0  # MiB for keys and values; 0: a share of what is free
    reserved_bytes: int = 0  # memory that the aligner will take
    shares: int = 1  # models that share the memory


@dataclass(frozen=True, slots=True)
class Capacity:
    """The rows and bytes that fit."""

    rows: int  # the most rows; of rows with more than `ROW_TOKENS` tokens fewer may fit
    rows_bytes: int  # for keys and values of rows
    prefix_cache_bytes: int  # for what is kept of live sessions between their partials
    token_bytes: int  # keys and values of one token

    @property
    def tokens(self) -> int:
        """Return how many tokens of all rows fit."""
        return self.rows_bytes // self.token_bytes


def token_bytes(*, layers: int, kv_heads: int, head_dim: int, item_bytes: int) -> int:
    """Bytes of keys and values for one token."""
    return 2 * layers * kv_heads * head_dim * item_bytes


def plan(limits: Limits, *, free_bytes: int, token_bytes: int, device: str) -> Capacity:
    """The capacity within the limits, with `free_bytes` free after the weights; at least one row."""
    rest = max(0, free_bytes - limits.reserved_bytes)
    share = int(rest * _SHARE[device]) if device == "cuda" else min(rest, int(free_bytes * _SHARE[device]))
    budget = limits.kv_budget_mb * _MIB or share // limits.shares
    row_bytes = ROW_TOKENS * token_bytes
    rows = max(1, min(limits.max_batch, budget // 2 // row_bytes))
    # All of that half, not what the rows need as planned: where memory is left, a long prompt takes nobody's place.
    rows_bytes = max(rows * row_bytes, budget // 2)
    return Capacity(rows, rows_bytes, max(0, budget - rows_bytes), token_bytes)
