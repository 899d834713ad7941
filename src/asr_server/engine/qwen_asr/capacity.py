"""The number of rows and tokens that fit, planned once at load, and fewer after memory ran out.

Pure; the memory is taken elsewhere.
"""

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
# Passes without a failure after which twice as many rows are tried: those of about one short answer.
_RECOVERY_PASSES = 64


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
    """Return the capacity within the limits, with `free_bytes` free after the weights; at least one row."""
    rest = max(0, free_bytes - limits.reserved_bytes)
    share = int(rest * _SHARE[device]) if device == "cuda" else min(rest, int(free_bytes * _SHARE[device]))
    budget = limits.kv_budget_mb * _MIB or share // limits.shares
    row_bytes = ROW_TOKENS * token_bytes
    rows = max(1, min(limits.max_batch, budget // 2 // row_bytes))
    # All of that half, not what the rows need as planned: where memory is left, a long prompt takes nobody's place.
    rows_bytes = max(rows * row_bytes, budget // 2)
    return Capacity(rows, rows_bytes, max(0, budget - rows_bytes), token_bytes)


@dataclass(slots=True)
class RowLimit:
    """The most rows of a batch at this time."""

    planned: int  # rows for which the memory was planned
    rows: int = 0  # rows that may decode together now
    _succeeded: int = 0

    def __post_init__(self) -> None:
        self.rows = self.rows or self.planned

    def ran_out(self, rows: int) -> None:
        """Memory was too short for a pass of `rows`."""
        self.rows, self._succeeded = max(1, min(self.rows, rows // 2)), 0

    def succeeded(self) -> None:
        """A pass was made. What took the memory may be gone: from time to time more rows are tried."""
        if self.rows == self.planned:
            return
        self._succeeded += 1
        if self._succeeded == _RECOVERY_PASSES:
            self.rows, self._succeeded = min(self.planned, 2 * self.rows), 0
