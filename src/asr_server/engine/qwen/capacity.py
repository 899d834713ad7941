"""How many rows of how many tokens fit, planned once at load. Pure; the memory is taken elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

# Tokens of the row that is planned for: 30 s of audio (390), 360 of an answer, 146 of the prompt around it. A longer
# answer grows (`decoder.py`).
ROW_TOKENS = 896
# Of the memory that is free after the weights, this much may hold keys and values unless KV_BUDGET_MB says otherwise;
# the rest is for activations, and on a CPU for everybody else. Rows take half of it at most, live sessions the rest.
_SHARE = {"cuda": 0.6, "cpu": 0.25}
_MIB = 1024 * 1024


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

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether that many rows, the longest of `tokens`, fit; one row is tried whatever its length."""
        return rows <= self.rows and (rows == 1 or rows * tokens <= self.tokens)


def token_bytes(*, layers: int, kv_heads: int, head_dim: int, item_bytes: int) -> int:
    """Bytes of keys and values for one token."""
    return 2 * layers * kv_heads * head_dim * item_bytes


def plan(*, free_bytes: int, kv_budget_mb: int, max_batch: int, token_bytes: int, device: str) -> Capacity:
    """The capacity for `max_batch` rows within `kv_budget_mb` MiB (0: a share of `free_bytes`); at least one row."""
    budget = kv_budget_mb * _MIB or int(free_bytes * _SHARE[device])
    row_bytes = ROW_TOKENS * token_bytes
    rows = max(1, min(max_batch, budget // 2 // row_bytes))
    # All of that half, not what the rows need as planned: where memory is left, a long prompt takes nobody's place.
    rows_bytes = max(rows * row_bytes, budget // 2)
    return Capacity(rows, rows_bytes, max(0, budget - rows_bytes), token_bytes)
