"""One unit of work for the engine thread, with its priority, deadline, result and observer, the queue of waiting jobs,
and the clock of deadlines."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import partial
from itertools import chain, count
from typing import Any, Generic, TypeAlias, TypeVar

from asr_server.core.errors import AsrError, TranscriptionFailed

R = TypeVar("R")

DEFAULT = ""  # the model of jobs that name none

_numbers = count(1)


class Priority(IntEnum):
    """Classes of work, most urgent first: ends of live utterances, open ones, short recordings, other recordings."""

    FINAL = 0
    PARTIAL = 1
    INTERACTIVE = 2
    BULK = 3

    @property
    def is_live(self) -> bool:
        return self <= Priority.PARTIAL


@dataclass(slots=True, weakref_slot=True, eq=False)
class Job(Generic[R]):
    """Work for the engine thread with a result of type `R`."""

    item: object  # given to the batch of `model`; with None the job is done when that model is loaded
    priority: Priority = Priority.INTERACTIVE
    cost_s: float = 0.0  # its length in seconds of audio
    # by the thread's request clock; a function that returns it if it may move. The caller cancels the job then
    deadline_s: float | Callable[[], float] | None = None
    model: str = DEFAULT
    owner: int = 0  # the server that sent it, if several share the engine
    # in a live session, the name of the utterance; later jobs with the same name have more of its audio
    session: str = ""
    on_delta: Callable[[object], None] | None = None  # called on the engine thread; must not block
    observer: SchedulerObserver | None = None  # observes this job in place of the thread's observer
    queued_s: float = 0.0  # when it arrived (monotonic); 0: set by `submit`
    started_s: float = 0.0  # set by the engine thread (monotonic)
    ended_s: float = 0.0  # set by the engine thread (monotonic)
    load_s: float = 0.0  # set by the engine thread: the part of its wait during which the model was loaded
    begun: bool = False  # set by the engine thread: the batch had an outcome for it
    is_queued: bool = False  # set by `JobQueue`
    key: int = field(default_factory=lambda: next(_numbers))  # the row's key in the batch
    future: Future[R] = field(default_factory=Future)  # cancelled to cancel the job: there is no other flag
    # of the code that made the job: what the engine thread logs for only this job has the id of its request
    context: Context = field(default_factory=copy_context)

    @property
    def cancelled(self) -> bool:
        return self.future.cancelled()

    @property
    def waited_s(self) -> float:
        return self.started_s - self.queued_s - self.load_s

    def why_cancelled(self, now_s: float) -> JobEnd:
        """Return how the metrics count a cancelled job: its caller also cancels it at the deadline, and then it is
        late."""
        deadline_s = self.deadline_s() if callable(self.deadline_s) else self.deadline_s
        is_late = deadline_s is not None and now_s >= deadline_s
        return JobEnd.EXPIRED if is_late else JobEnd.CANCELLED

    # The caller may cancel at any moment, from another thread. `set_running_or_notify_cancel` decides who was first:
    # after it returned True the future can no longer be cancelled, so setting its result cannot fail.

    def hand_out(self, value: object) -> None:
        """Pass output to `on_delta`. If that raises, cancel the job: the receiver is at fault, not the engine."""
        # Read once: a caller that cancels removes it, on another thread.
        if (receive := self.on_delta) is None:
            return
        try:
            receive(value)
        except Exception:
            self.future.cancel()

    def succeed(self, value: R) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        """Set the error, wrapped in an `AsrError` if it is none, unless the job was cancelled."""
        if self.future.set_running_or_notify_cancel():
            if not isinstance(error, AsrError):
                cause, error = error, TranscriptionFailed("The engine failed on this audio.")
                error.__cause__ = cause
            self.future.set_exception(error)


# A job in the queue or in the batch, where jobs of every result type are mixed.
AnyJob: TypeAlias = Job[Any]


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


# The share of the engine's time that recordings keep while they wait or run, however much live work there is.
RECORDINGS_SHARE = 0.2
# How long bulk work lets later interactive work overtake it, in seconds.
BULK_ALLOWANCE_S = 30.0
# How long a partial lets later finals overtake it.
PARTIAL_ALLOWANCE_S = 5.0
_ALLOWANCES_S = {Priority.PARTIAL: PARTIAL_ALLOWANCE_S, Priority.BULK: BULK_ALLOWANCE_S}


class JobQueue:
    """Waiting jobs, most urgent first, in min-heaps: live work and recordings of each owner and model.

    Owners take turns, so that each gets the same seconds of audio while its jobs wait (start-time fair queueing).
    In each heap the key is the arrival time plus an allowance of the class: finals overtake partials, and interactive
    work overtakes bulk work, for a bounded time only. Keys never change, and jobs with equal keys leave in the order of
    arrival. The engine thread decides which of the two kinds is asked first, and which models have room.
    """

    # No method locks: callers hold the engine thread's lock, since `submit` pushes from other threads.

    def __init__(self) -> None:
        self._heaps: dict[tuple[bool, int, str], list[tuple[float, int, AnyJob]]] = {}
        # Seconds of live work and recordings that each owner has had, and the figure of the owner with the last turn.
        self._had_s: dict[tuple[bool, int], float] = {}
        self._turn_s = {True: 0.0, False: 0.0}

    def __bool__(self) -> bool:
        return bool(self._heaps)

    def has(self, *, live: bool) -> bool:
        return any(kind is live for kind, *_ in self._heaps)

    def waits_for(self, model: str) -> bool:
        return any(name == model for *_, name in self._heaps)

    def push(self, job: AnyJob) -> None:
        """Add a job; `job.queued_s` is its arrival."""
        live, share = job.priority.is_live, (job.priority.is_live, job.owner)
        heap = self._heaps.setdefault((*share, job.model), [])
        # An owner earns nothing for time without waiting jobs.
        self._had_s[share] = max(self._had_s.get(share, 0.0), self._turn_s[live])
        heapq.heappush(heap, (job.queued_s + _ALLOWANCES_S.get(job.priority, 0.0), next(_numbers), job))
        job.is_queued = True

    def pop(self, *, live: bool, models: Collection[str] | None = None) -> AnyJob | None:
        """Remove and return the most urgent job of live work, or of recordings, for `models` (None: all). Return None
        if there is no such job."""
        found = [place for place in self._heaps if place[0] is live and (models is None or place[2] in models)]
        if not found:
            return None
        place = min(found, key=lambda place: (self._had_s[place[:2]], self._heaps[place][0]))
        job = heapq.heappop(self._heaps[place])[-1]
        job.is_queued = False
        self._turn_s[live] = self._had_s[place[:2]]
        self._had_s[place[:2]] += job.cost_s
        if not self._heaps[place]:
            del self._heaps[place]  # an empty heap would count as waiting work
        if not self._heaps:
            self._had_s, self._turn_s = {}, {True: 0.0, False: 0.0}
        return job

    def drain(self, models: Collection[str] | None = None) -> list[AnyJob]:
        """Remove and return all jobs for `models` (None: all), live work first."""
        return [job for live in (True, False) for job in iter(partial(self.pop, live=live, models=models), None)]

    def depth(self) -> dict[str, int]:
        """Return how many jobs wait, by class name."""
        counts = Counter(job.priority for job in self._waiting())
        return {priority.name.lower(): counts[priority] for priority in Priority}

    def waiting_s(self) -> float:
        return sum(job.cost_s for job in self._waiting())

    def _waiting(self) -> Iterator[AnyJob]:
        return (job for *_, job in chain.from_iterable(self._heaps.values()) if not job.cancelled)


class RequestClock:
    """Monotonic seconds, not counting loads. The methods may be called from any thread.

    A load that shows no progress stops the clock for at most `patience_s`, and each sign of progress begins that time
    anew. `clock` is the system's monotonic seconds.
    """

    def __init__(self, patience_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        # Guards the following fields. Nothing except `clock` is locked or called while it is held.
        self._lock = threading.RLock()
        self._loads = 0  # under way
        self._moved_s = 0.0  # the last sign of progress of any load, by the system's clock
        self._stopped_s = 0.0  # for how long the clock has stood still, up to `_moved_s`

    def now_s(self) -> float:
        """Return the seconds by this clock, which never decrease."""
        with self._lock:
            return self._clock() - self._stopped_s - self._standing_s()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count a load as in progress until the block ends. Several loads may overlap, on different threads."""
        with self._lock:
            self.progress()
            self._loads += 1
        try:
            yield
        finally:
            with self._lock:
                self.progress()
                self._loads -= 1

    @property
    def load_moved_s(self) -> float | None:
        """Return when the loads in progress last made progress, by the system's clock; None without loads."""
        with self._lock:
            return self._moved_s if self._loads else None

    def progress(self) -> None:
        """Note that a load makes progress."""
        with self._lock:
            self._stopped_s += self._standing_s()
            self._moved_s = self._clock()

    def _standing_s(self) -> float:
        """Return for how much of the time since the last sign of progress the clock has stood still."""
        return min(self._clock() - self._moved_s, self._patience_s) if self._loads else 0.0
