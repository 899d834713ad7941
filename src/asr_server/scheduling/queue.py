"""The waiting jobs, in two min-heaps: live work and recordings. They take no lock: the engine thread's own guards them.

In both the key is the arrival time plus an allowance of the class: finals overtake partials, and interactive work
overtakes bulk work, for a bounded time only. Keys never change, and equal keys leave in the order they came. Which of
the two heaps is asked first is the engine thread's decision.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import chain, count

from asr_server.scheduling.job import AnyJob, Priority

# How long bulk work lets later interactive work overtake it, in seconds.
BULK_ALLOWANCE_S = 30.0
# How long a partial lets later finals overtake it.
PARTIAL_ALLOWANCE_S = 5.0
_ALLOWANCES_S = {Priority.PARTIAL: PARTIAL_ALLOWANCE_S, Priority.BULK: BULK_ALLOWANCE_S}


class JobQueue:
    """Waiting jobs, most urgent first."""

    def __init__(self) -> None:
        self._live: list[tuple[float, int, AnyJob]] = []
        self._recordings: list[tuple[float, int, AnyJob]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._live) + len(self._recordings)

    @property
    def has_live(self) -> bool:
        """Whether live work waits."""
        return bool(self._live)

    @property
    def has_recordings(self) -> bool:
        """Whether recordings wait."""
        return bool(self._recordings)

    def push(self, job: AnyJob) -> None:
        """Add a job; `job.queued_s` is its arrival."""
        heap = self._live if job.priority.is_live else self._recordings
        heapq.heappush(heap, (job.queued_s + _ALLOWANCES_S.get(job.priority, 0.0), next(self._arrivals), job))

    def pop(self, *, live: bool) -> AnyJob | None:
        """Remove and return the most urgent job of live work, or of recordings; None when there is none."""
        heap = self._live if live else self._recordings
        return heapq.heappop(heap)[-1] if heap else None

    def drain(self) -> list[AnyJob]:
        """Remove and return all jobs, live work first."""
        heaps = (self._live, self._recordings)
        return [heapq.heappop(heap)[-1] for heap in heaps for _ in range(len(heap))]

    def depth(self) -> dict[str, int]:
        """How many jobs wait, by class name."""
        counts = Counter(job.priority for job in self._waiting())
        return {priority.name.lower(): counts[priority] for priority in Priority}

    def waiting_s(self) -> float:
        """Seconds of audio that wait."""
        return sum(job.cost_s for job in self._waiting())

    def _waiting(self) -> Iterator[AnyJob]:
        return (job for *_, job in chain(self._live, self._recordings) if not job.cancelled)
