"""One unit of work for the engine thread: its item, priority, deadline and result."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count
from typing import Any, Generic, TypeAlias, TypeVar

from asr_server.core.errors import AsrError, TranscriptionFailed

R = TypeVar("R")

# The model of jobs that name none.
DEFAULT = ""

_numbers = count(1)


class Priority(IntEnum):
    """Classes of work, most urgent first: the ends of live utterances, open ones, short recordings, the rest."""

    FINAL = 0
    PARTIAL = 1
    INTERACTIVE = 2
    BULK = 3

    @property
    def is_live(self) -> bool:
        """True if a speaker waits for it. All other work is recordings."""
        return self <= Priority.PARTIAL


@dataclass(slots=True, eq=False)
class Job(Generic[R]):
    """Work for the engine thread with a result of type `R`. To cancel it, cancel `future`: there is no other flag."""

    item: object  # what the batch of `model` takes in; with None the job is done when that model is loaded
    priority: Priority = Priority.INTERACTIVE
    cost_s: float = 0.0  # its length in seconds of audio
    deadline_s: float | None = None  # by the thread's request clock; expired work never runs
    model: str = DEFAULT
    # for a live session, the utterance whose audio it is so far; later jobs of the same name have more of it
    session: str = ""
    on_delta: Callable[[object], None] | None = None  # called on the engine thread; must not block
    queued_s: float = 0.0  # when it came (monotonic), set by the engine thread where it is 0
    started_s: float = 0.0  # set by the engine thread (monotonic)
    ended_s: float = 0.0  # set by the engine thread (monotonic)
    load_s: float = 0.0  # set by the engine thread: the part of its wait that was for the model to be loaded
    begun: bool = False  # set by the engine thread: the batch had an outcome for it
    key: int = field(default_factory=lambda: next(_numbers))  # the row's key in the batch
    future: Future[R] = field(default_factory=Future)
    # that of the code that made the job: what the engine thread logs for this job alone has the id of its request
    context: Context = field(default_factory=copy_context)

    @property
    def cancelled(self) -> bool:
        """True if the caller has cancelled it."""
        return self.future.cancelled()

    def expired(self, now_s: float) -> bool:
        """True if the deadline has passed."""
        return self.deadline_s is not None and now_s >= self.deadline_s

    # The caller may cancel at any moment, from another thread. `set_running_or_notify_cancel` decides who was first:
    # after it returned True the future can no longer be cancelled, so setting its result cannot fail.

    def succeed(self, value: R) -> None:
        """Set the result, unless the job was cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Set the error, as one of ours, unless the job was cancelled."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(_domain(error))


# A job in the queue or in the batch, where jobs of every result type are mixed.
AnyJob: TypeAlias = Job[Any]


def _domain(error: Exception) -> AsrError:
    """Return the error as one of ours, the original as its cause."""
    if isinstance(error, AsrError):
        return error
    wrapped = TranscriptionFailed("The engine failed on this audio.")
    wrapped.__cause__ = error
    return wrapped
