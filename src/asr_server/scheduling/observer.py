"""Who is told of the engine thread's work: figures for whoever counts them. Not a log, and no say in anything."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from asr_server.scheduling.job import AnyJob


class JobEnd(StrEnum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "left"  # nobody waited for it any more
    EXPIRED = "late"  # its deadline passed


class SchedulerObserver:
    """Watches nothing; to be overridden. All of it is called on the engine thread and must return at once."""

    def started(self, job: AnyJob) -> None:
        """A job became a row of the batch."""

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """A job is over, perhaps without having started. `value`: its result, of those that are `DONE`."""

    def stepped(self, rows: int, took_s: float) -> None:
        """The batch of so many rows moved one step, or failed to."""
