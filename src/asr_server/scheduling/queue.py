"""The min-heap of waiting jobs. It takes no lock: the engine thread's own guards it.

Live work goes first, always. Among the rest the key is the arrival time plus an allowance of the class, so that
bulk work gives way to interactive work for a bounded time only. Keys never change, so one heap is enough, and equal
keys leave in the order they came.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count

from asr_server.scheduling.job import AnyJob, Priority

# How long bulk work lets later interactive work overtake it, in seconds.
BULK_ALLOWANCE_S = 30.0


class JobQueue:
    """Waiting jobs, most urgent first."""

    def __init__(self) -> None:
        self._heap: list[tuple[bool, float, int, AnyJob]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, job: AnyJob) -> None:
        """Add a job; `job.queued_s` is its arrival."""
        allowance_s = BULK_ALLOWANCE_S if job.priority is Priority.BULK else 0.0
        key = (job.priority is not Priority.LIVE, job.queued_s + allowance_s, next(self._arrivals), job)
        heapq.heappush(self._heap, key)

    def pop(self, *, live_only: bool = False) -> AnyJob | None:
        """Remove and return the most urgent job; None when there is none, or none that is live."""
        if not self._heap or (live_only and self._heap[0][-1].priority is not Priority.LIVE):
            return None
        return heapq.heappop(self._heap)[-1]

    def drain(self) -> list[AnyJob]:
        """Remove and return all jobs, most urgent first."""
        return [heapq.heappop(self._heap)[-1] for _ in range(len(self._heap))]

    def depth(self) -> dict[str, int]:
        """How many jobs wait, by class name."""
        counts = Counter(entry[-1].priority for entry in self._heap if not entry[-1].cancelled)
        return {priority.name.lower(): counts[priority] for priority in Priority}

    def waiting_s(self) -> float:
        """Seconds of audio that wait."""
        return sum(entry[-1].cost_s for entry in self._heap if not entry[-1].cancelled)
