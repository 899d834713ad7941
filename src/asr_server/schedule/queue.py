"""The waiting jobs, in min-heaps: live work and recordings of each model. The engine thread's lock guards them.

In each the key is the arrival time plus an allowance of the class: finals overtake partials, and interactive work
overtakes bulk work, for a bounded time only. Keys never change, and equal keys leave in the order they came. Which of
the two kinds is asked first, and which models have room, is the engine thread's decision.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain, count

from asr_server.schedule.job import AnyJob, Priority

# How long bulk work lets later interactive work overtake it, in seconds.
BULK_ALLOWANCE_S = 30.0
# How long a partial lets later finals overtake it.
PARTIAL_ALLOWANCE_S = 5.0
_ALLOWANCES_S = {Priority.PARTIAL: PARTIAL_ALLOWANCE_S, Priority.BULK: BULK_ALLOWANCE_S}


class JobQueue:
    """Waiting jobs, most urgent first."""

    def __init__(self) -> None:
        self._heaps: dict[tuple[bool, str], list[tuple[float, int, AnyJob]]] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    @property
    def has_live(self) -> bool:
        """True if live work waits."""
        return any(live for live, _ in self._heaps)

    @property
    def has_recordings(self) -> bool:
        """True if recordings wait."""
        return any(not live for live, _ in self._heaps)

    def waits_for(self, model: str) -> bool:
        """True if any job waits for this model."""
        return any(name == model for _, name in self._heaps)

    def push(self, job: AnyJob) -> None:
        """Add a job; `job.queued_s` is its arrival."""
        heap = self._heaps.setdefault((job.priority.is_live, job.model), [])
        heapq.heappush(heap, (job.queued_s + _ALLOWANCES_S.get(job.priority, 0.0), next(self._arrivals), job))

    def pop(self, *, live: bool, models: Collection[str] | None = None) -> AnyJob | None:
        """Remove and return the most urgent job of live work, or of recordings, for `models` (None: all). None when
        there is none."""
        found = [place for place in self._heaps if place[0] is live and (models is None or place[1] in models)]
        return self._take(min(found, key=lambda place: self._heaps[place][0])) if found else None

    def drain(self, models: Collection[str] | None = None) -> list[AnyJob]:
        """Remove and return all jobs for `models` (None: all), live work first."""
        jobs = []
        for live in (True, False):
            while (job := self.pop(live=live, models=models)) is not None:
                jobs.append(job)
        return jobs

    def _take(self, place: tuple[bool, str]) -> AnyJob:
        job = heapq.heappop(self._heaps[place])[-1]
        if not self._heaps[place]:
            del self._heaps[place]  # an empty one would count as waiting work
        return job

    def depth(self) -> dict[str, int]:
        """Return how many jobs wait, by class name."""
        counts = Counter(job.priority for job in self._waiting())
        return {priority.name.lower(): counts[priority] for priority in Priority}

    def waiting_s(self) -> float:
        """Seconds of audio that wait."""
        return sum(job.cost_s for job in self._waiting())

    def _waiting(self) -> Iterator[AnyJob]:
        return (job for *_, job in chain.from_iterable(self._heaps.values()) if not job.cancelled)
