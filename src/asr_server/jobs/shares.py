"""How the jobs of several keys share the server: whose job is next, and how many jobs and bytes a key may have."""

from __future__ import annotations

import asyncio
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
    """`ttl_s`: how long finished jobs are kept. `timeout_s`: how long one may run. `max_jobs`: how many may wait and
    run. `max_bytes`: what all may have in a database.

    `key_max_jobs`, `key_max_bytes`: how many of one owner may wait and run, and what all of one may take; 0: with
    `several_keys` as much as they leave free, otherwise no limit.
    """

    ttl_s: float
    timeout_s: float
    max_jobs: int
    key_max_jobs: int = 0
    key_max_bytes: int = 0
    several_keys: bool = False
    max_bytes: int = 0

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
    """Who of them is next: owners take turns, each in the order of its own jobs, and have at most `each` under way."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._waiting: dict[str, deque[str]] = {}  # the owner whose turn is next comes first
        self._under_way: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def put(self, owner: str, identity: str) -> None:
        """Add a job, which waits from now on."""
        self._waiting.setdefault(owner, deque()).append(identity)
        self._changed.set()

    def remove(self, owner: str, identity: str) -> None:
        """Remove a job, if it waits."""
        waiting = self._waiting.get(owner, deque())
        if identity in waiting:
            waiting.remove(identity)
            if not waiting:
                del self._waiting[owner]

    async def next(self) -> str:
        """The job whose turn it is. `end` must be called when it is over."""
        while True:
            for owner, waiting in self._waiting.items():
                if self._under_way[owner] < self._each:
                    self._under_way[owner] += 1
                    identity = waiting.popleft()
                    del self._waiting[owner]
                    if waiting:
                        self._waiting[owner] = waiting  # behind the others
                    return identity
            self._changed.clear()
            await self._changed.wait()

    def end(self, owner: str) -> None:
        """A job of this owner is over."""
        self._under_way[owner] -= 1
        if not self._under_way[owner]:
            del self._under_way[owner]
        self._changed.set()
