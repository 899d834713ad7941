"""Reports of the engine thread about its work, for metrics."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from asr_server.schedule.job import AnyJob


class JobEnd(StrEnum):
    """The way in which a job ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "left"  # by its caller
    EXPIRED = "late"  # its deadline passed


class SchedulerObserver:
    """Ignores everything; to be overridden. Its methods are called on the engine thread and must return at once."""

    def started(self, job: AnyJob) -> None:
        """A job became a row of the batch."""

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """A job ended, perhaps before it started. `value`: its result if it is `DONE`."""

    def stepped(self, rows: int, took_s: float) -> None:
        """The batch made one step with that many rows, or failed in it."""
