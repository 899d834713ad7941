"""The shares of live work and recordings in the time of an engine.

While recordings wait or run they keep a fifth of it (`RECORDINGS_SHARE`), however much live work there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from asr_server.schedule.job import AnyJob

# The share of the engine's time that recordings keep while there is live work.
RECORDINGS_SHARE = 0.2
# How far either side may fall behind before it is forgotten. It bounds how long one side can keep the other waiting:
# live work for 2.5 s, recordings for 10 s.
_FORGOTTEN_S = 2.0
# Seconds of audio in a second, before anything was measured: what two cores do with the 0.6B.
FIRST_GUESS_SPEED = 4.0
# The same for a GPU; an H100 does ten times that.
FIRST_GUESS_SPEED_GPU = 100.0


class StepTime:
    """Divides the time of one step between live work and recordings.

    A step first moves all rows that have had an outcome before, then begins new ones, live work first. All moved rows
    share the time until one of their outcomes; a new row is charged for the time until its first outcome. `jobs`: the
    rows of the batch. `clock`: monotonic seconds.
    """

    def __init__(self, jobs: Collection[AnyJob], clock: Callable[[], float]) -> None:
        self.live_s = self.recordings_s = 0.0
        self.has_recordings = any(not job.priority.is_live for job in jobs)
        begun = [job for job in jobs if job.begun]
        # Counted once: each of these rows has an outcome, and is charged for with all of them.
        self._moved_live_share = _live_share(begun) if begun else None
        self._new = {job for job in jobs if not job.begun}
        self._clock = clock
        self._last_s = clock()

    def on_outcome(self, job: AnyJob) -> None:
        """Charge the time since the last outcome."""
        if job not in self._new:
            self._charge(self._moved_live_share)
            return
        self._charge(_live_share([job]))
        self._new.remove(job)

    def end(self) -> None:
        """End the step. Charge the time since the last outcome to rows that have no outcome yet."""
        if self._new:
            self._charge(_live_share([job for job in self._new if job.priority.is_live] or self._new))
        else:
            self._charge(self._moved_live_share)

    def _charge(self, live_share: float | None) -> None:
        """Divide the time since the last outcome. None: charge nobody."""
        now_s = self._clock()
        took_s, self._last_s = now_s - self._last_s, now_s
        if live_share is not None:
            self.live_s += took_s * live_share
            self.recordings_s += took_s * (1 - live_share)


def _live_share(jobs: Collection[AnyJob]) -> float:
    return sum(job.priority.is_live for job in jobs) / len(jobs)


class RecordingsShare:
    """Count how far deferrable work, such as recordings, is behind its share of the engine's time."""

    def __init__(self) -> None:
        self._behind_s = 0.0

    @property
    def behind(self) -> bool:
        return self._behind_s > 0

    def charge(self, urgent_s: float, own_s: float, *, is_wanted: bool) -> None:
        """Count the seconds of a step for urgent and for deferrable work. Without deferrable work nothing is owed."""
        behind_s = self._behind_s + RECORDINGS_SHARE * (urgent_s + own_s) - own_s
        self._behind_s = max(-_FORGOTTEN_S, min(_FORGOTTEN_S, behind_s)) if is_wanted else 0.0
