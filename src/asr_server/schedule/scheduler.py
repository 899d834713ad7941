"""The interface by which the server submits work: an engine thread has it, and an engine in another process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol

from asr_server.schedule.job import DEFAULT, Job, R, RequestClock
from asr_server.schedule.model import EngineSnapshot


class Scheduler(Protocol):
    """Takes jobs for the models of an engine, the most urgent first. `EngineThread` says what each method does."""

    request_clock: RequestClock  # that of the jobs' deadlines
    # How long recordings were in the batch so far, live work at the same time included, by the clock of requests.
    with_recordings_s: float

    @property
    def clock(self) -> Callable[[], float]:
        """Return the clock of the jobs' times: monotonic seconds."""

    def submit(self, job: Job[R]) -> Future[R]:
        """Queue a job. Raises `ShuttingDown` when no new work is taken, and an `EngineError` when none can be done."""

    def load(self, model: str = DEFAULT) -> Future[None]:
        """Load a model before other work, unless it is loaded. Raises as `submit` does."""

    def lease(self, *, live: bool = False, model: str = DEFAULT) -> AbstractContextManager[None]:
        """Keep a model loaded until the block ends, where memory allows."""

    def snapshot(self) -> EngineSnapshot:
        """Return the present state; never waits."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Take no more work, fail all jobs with `ShuttingDown`, and end. May block; not called on an event loop."""
