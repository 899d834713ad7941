"""How many rows of how many tokens fit, planned once at load. Pure; the memory is taken elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

# Tokens of the row that is planned for: 30 s of audio (390), 360 new tokens, 146 for the prompt around it.
ROW_TOKENS = 896
# Of the memory that is free after the weights, this much may hold keys and values unless KV_BUDGET_MB says otherwise;
# the rest is for activations, and on a CPU for everybody else, such as the aligner and the process that tells speakers
# apart, which takes 150 MB. On a GPU the aligner's memory is left out before. Rows take half of it at most, live
# sessions the rest.
_SHARE = {"cuda": 0.6, "cpu": 0.25}
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What is wanted: at most `max_batch` rows, `kv_budget_mb` MiB for keys and values (0: a share of what is free).
    `reserved_bytes`: what the aligner will take beside the model. `shares`: models that share the memory."""

    max_batch: int
    kv_budget_mb: int = 0
    reserved_bytes: int = 0
    shares: int = 1


@dataclass(frozen=True, slots=True)
class Capacity:
    """At most `rows` rows, as many as fit into `rows_bytes`: those of more than `ROW_TOKENS` tokens may be fewer.

    `prefix_cache_bytes` bounds what is kept of live sessions between their partials.
    """

    rows: int
    rows_bytes: int
    prefix_cache_bytes: int
    token_bytes: int

    @property
    def tokens(self) -> int:
        """All tokens of rows that fit."""
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
