"""The interface of the engine thread to the batch that it drives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class RowDelta:
    """A row has new output; more will come."""

    key: int  # the row's, as given to `admit`
    value: Any


@dataclass(frozen=True, slots=True)
class RowDone:
    """A row is finished and has left the batch."""

    key: int  # the row's, as given to `admit`
    value: Any  # its answer


@dataclass(frozen=True, slots=True)
class RowFailed:
    """Only this row failed, and has left the batch."""

    key: int  # the row's, as given to `admit`
    error: Exception


Outcome = RowDelta | RowDone | RowFailed


class Batch(Protocol):
    """A batch of rows that moves in steps. Every method is called from the engine thread, and only from it."""

    @property
    def loaded(self) -> bool:
        """True if rows may be admitted."""

    @property
    def fits(self) -> bool:
        """True if there seems to be memory for a load now, as far as that is known."""

    @property
    def free_slots(self) -> int:
        """Return how many more rows may be admitted now. 0 while as much waits inside as a step can begin: work that
        waits outside can still be overtaken."""

    @property
    def urgent_slots(self) -> int:
        """Return how many more urgent rows may be admitted now. They overtake the others that wait inside; 0 while as
        many urgent ones wait there as a step can begin."""

    def load(self) -> None:
        """Make ready; may take long. Raises when it cannot, and may be called again later."""

    def unload(self) -> None:
        """Give the memory back. Only called with no rows in the batch."""

    def admit(self, key: int, item: Any, urgent: bool = False) -> None:
        """Take one row in; its work begins with the next steps, that of urgent rows first. Raises when `item` itself is
        at fault."""

    def step(self, begin_s: float | None = None) -> Iterable[Outcome]:
        """Move every row that has begun by one step, then begin others. Raises only when no row can be told to be at
        fault.

        Yields each outcome as soon as it is known: outcomes of rows that had begun come before the first of the others.
        `begin_s`: about how long the rows that have begun can wait for others to begin; None leaves it to the batch.
        """

    def drop(self, key: int) -> None:
        """Take a row out between steps; unknown keys are ignored."""
