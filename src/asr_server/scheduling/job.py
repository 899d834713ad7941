"""One unit of work for the engine thread: what, for whom, how urgent, until when."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Any

_numbers = count(1)


class Priority(IntEnum):
    """Classes of work, most urgent first."""

    LIVE = 0
    INTERACTIVE = 1
    BULK = 2


@dataclass(slots=True, eq=False)
class Job:
    """Work for the engine thread. The caller leaves by cancelling `future`: there is no other flag.

    `cost_s` is the seconds of audio it stands for. `deadline_s` is on the monotonic clock; expired work never runs.
    `started_s`, `ended_s` and `load_s`, how much of its wait was for the model to be loaded, are set by the engine
    thread. `on_delta` is called on that thread and must not block.
    """

    item: Any
    priority: Priority = Priority.INTERACTIVE
    cost_s: float = 0.0
    deadline_s: float | None = None
    on_delta: Callable[[Any], None] | None = None
    queued_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    load_s: float = 0.0
    key: int = field(default_factory=lambda: next(_numbers))
    future: Future[Any] = field(default_factory=Future)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.future.cancelled()

    def expired(self, now_s: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline_s is not None and now_s >= self.deadline_s

    def succeed(self, value: Any) -> None:
        """Hand out the result, unless the caller has left."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Hand out the error, unless the caller has left."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
