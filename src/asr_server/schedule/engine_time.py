"""The division of the engine's time between live work and recordings. Pure.

While recordings wait or run they keep a fifth of the engine's time, however much live work there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from asr_server.schedule.job import AnyJob

# The share of the engine's time that recordings keep while there is live work.
RECORDINGS_SHARE = 0.2
# How far either side may fall behind before it is forgotten. It bounds how long one side can keep the other waiting:
# live work for 2.5 s, recordings for 10 s.
_FORGOTTEN_S = 2.0


class StepTime:
    """Divides the time of one step between live work and recordings.

    A step first moves all rows that have had an outcome before, then begins new ones, live work first. So the time
    until an outcome of the former is shared by all of them, and what is spent until a new row has its first outcome is
    that row's own. `jobs`: the rows of the batch. `clock` is monotonic seconds.

    `moved_rows` and `moved_s`: the rows that had begun before, and their time; `begun_rows` and `begun_s`: the others.
    """

    def __init__(self, jobs: Collection[AnyJob], clock: Callable[[], float]) -> None:
        self.live_s = self.recordings_s = 0.0
        self.has_recordings = any(not job.priority.is_live for job in jobs)
        self._begun = [job for job in jobs if job.begun]
        self.moved_rows, self.begun_rows, self.moved_s, self.begun_s = len(self._begun), 0, 0.0, 0.0
        self._new = {job for job in jobs if not job.begun}
        self._clock = clock
        self._last_s = clock()

    def on_outcome(self, job: AnyJob) -> None:
        """A row has an outcome now."""
        if job not in self._new:
            self._charge(self._begun)
            return
        self._charge([job])
        self._new.remove(job)
        self.begun_rows += 1

    def end(self) -> None:
        """The step is over. What it did since the last outcome was for rows that have not got so far."""
        self._charge([job for job in self._new if job.priority.is_live] or self._new or self._begun)

    def _charge(self, jobs: Collection[AnyJob]) -> None:
        now_s = self._clock()
        took_s, self._last_s = now_s - self._last_s, now_s
        if jobs is self._begun:
            self.moved_s += took_s
        else:
            self.begun_s += took_s
        if jobs:
            live = sum(job.priority.is_live for job in jobs) / len(jobs)
            self.live_s += took_s * live
            self.recordings_s += took_s * (1 - live)


class RecordingsShare:
    """The time that recordings are behind their share."""

    def __init__(self) -> None:
        self._behind_s = 0.0

    @property
    def behind(self) -> bool:
        """True if recordings have had less than their share."""
        return self._behind_s > 0

    def charge(self, step: StepTime, *, has_recordings: bool) -> None:
        """A step is over. `has_recordings`: whether any wait or run; if not, nothing is owed to them."""
        behind_s = self._behind_s + RECORDINGS_SHARE * (step.live_s + step.recordings_s) - step.recordings_s
        self._behind_s = max(-_FORGOTTEN_S, min(_FORGOTTEN_S, behind_s)) if has_recordings else 0.0
