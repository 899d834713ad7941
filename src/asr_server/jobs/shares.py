"""Fairness between keys: whose job is next, and how many jobs and bytes a key may have."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asr_server.core.errors import Overloaded

# One is transcribed while another is decoded or rendered. More of one caller would only share the same batch. The third
# place is for another one, who need not wait until one of these ends.
AT_ONCE, AT_ONCE_EACH = 3, 2
_RETRY_AFTER_S = 60
# Each may take some 100 MiB until it is on the disk.
_TEXTS_AT_ONCE, _TEXTS_AT_ONCE_EACH = 4, 2


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of all jobs and of each owner's. A limit of an owner that is 0 means: with `several_keys` as much as
    the owner leaves free, otherwise no limit."""

    ttl_s: float  # finished jobs are kept for so long
    timeout_s: float  # of one run
    max_jobs: int  # that wait and run
    key_max_jobs: int = 0  # of one owner, that wait and run
    key_max_bytes: int = 0  # of all jobs of one owner
    several_keys: bool = False
    max_bytes: int = 0  # of all jobs in a database

    def check_jobs(self, jobs: Counter[str], owner: str) -> None:
        """Raise `Overloaded` if there is no place for one more. `jobs`: how many wait and run, by owner."""
        free = self.max_jobs - jobs.total()
        if free <= 0:
            raise Overloaded("Too many jobs are waiting; try again later.", retry_after_s=_RETRY_AFTER_S)
        limit = self.key_max_jobs or (free if self.several_keys else 0)
        if owner and limit and jobs[owner] >= limit:
            raise Overloaded(
                f"This key has {jobs[owner]} jobs waiting or running, and may have no more; try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )

    def check_bytes(self, kept: int, free: int, owner: str) -> None:
        """Raise `Overloaded` if the owner's jobs are too large. `kept`: bytes of theirs, with the new one. `free`: what
        the disk or the database has left then."""
        limit = self.key_max_bytes or (free if self.several_keys else 0)
        if owner and (self.key_max_bytes or self.several_keys) and kept > limit:
            raise Overloaded(
                f"The jobs of this key may take {max(0, limit) // 2**20} MiB, and with this one would take "
                f"{kept // 2**20}: delete finished ones, or try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )


class ArrivingTexts:
    """Room in the memory for long texts that have not been stored yet."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextmanager
    def one(self, caller: str) -> Iterator[None]:
        """Hold room for one until the block ends. `caller`: a key or an address. Raises `Overloaded`."""
        if self._counts.total() == _TEXTS_AT_ONCE or (caller and self._counts[caller] == _TEXTS_AT_ONCE_EACH):
            raise Overloaded("Other long texts are arriving; try again.", retry_after_s=5)
        self._counts[caller] += 1
        try:
            yield
        finally:
            self._counts[caller] -= 1
            self._counts += Counter()  # drops those without any


class WaitingJobs:
    """Jobs that wait: owners take turns, each in the order of its own jobs, and have at most `each` under way."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._waiting: dict[str, deque[str]] = {}  # the owner whose turn is next comes first

    def put(self, owner: str, identity: str) -> None:
        """Add a job, which waits from now on."""
        self._waiting.setdefault(owner, deque()).append(identity)

    def remove(self, owner: str, identity: str) -> None:
        """Remove a job, if it waits."""
        waiting = self._waiting.get(owner, deque())
        if identity in waiting:
            waiting.remove(identity)
            if not waiting:
                del self._waiting[owner]

    def next(self, under_way: Counter[str]) -> str | None:
        """Take the job whose turn it is, None if there is none. `under_way`: how many each owner has."""
        for owner, waiting in self._waiting.items():
            if under_way[owner] < self._each:
                identity = waiting.popleft()
                del self._waiting[owner]
                if waiting:
                    self._waiting[owner] = waiting  # behind the others
                return identity
        return None
