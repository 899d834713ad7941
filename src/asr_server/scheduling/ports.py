"""The interface between the engine thread and the batch that it drives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RowDelta:
    """A row has new output, `value`; more will come."""

    key: int
    value: Any


@dataclass(frozen=True, slots=True)
class RowDone:
    """A row is finished and has left the batch."""

    key: int
    value: Any


@dataclass(frozen=True, slots=True)
class RowFailed:
    """A row failed alone and has left the batch; the others are unharmed."""

    key: int
    error: Exception


Outcome = RowDelta | RowDone | RowFailed


class Batch(Protocol):
    """A batch of rows that moves in steps. Every method is called from the engine thread, and only from it."""

    @property
    def loaded(self) -> bool:
        """Whether rows may be admitted."""

    @property
    def free_slots(self) -> int:
        """How many more rows may be admitted now."""

    def load(self) -> None:
        """Make ready; may take long. Raises when it cannot, and may be called again later."""

    def unload(self) -> None:
        """Give the memory back. Only called with no rows in the batch."""

    def admit(self, key: int, item: Any) -> None:
        """Take one row in; its work begins with the next step. Raises when `item` itself is at fault."""

    def step(self) -> Iterable[Outcome]:
        """Move every row by one step. Raises only when no row can be told to be at fault."""

    def drop(self, key: int) -> None:
        """Take a row out between steps; unknown keys are ignored."""
