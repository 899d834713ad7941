"""The number of rows that may decode together: fewer after memory ran out, more again while passes succeed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

# Passes without a failure after which twice as many rows are tried: those of about one short answer.
_RECOVERY_PASSES = 64


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
