"""The records of jobs that somebody watches, read together from a database while they change."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress

from asr_server.core.errors import JobsUnavailable
from asr_server.jobs.record import JobRecord

_PAUSE_S = 1.0
_LEAST_PAUSE_S = 0.05

ReadRecords = Callable[[Collection[str]], Awaitable[dict[str, JobRecord]]]


class RecordFeed:
    """One read for all watchers, at most every second, and sooner after `wake`. Used from the event loop."""

    def __init__(self, read: ReadRecords) -> None:
        self._read = read
        self._watched: Counter[str] = Counter()
        self._records: dict[str, JobRecord] = {}
        self._read_again = asyncio.Event()
        self._was_read = asyncio.Event()

    def wake(self) -> None:
        """Read again soon: a job changed here, or watchers have to check something other than records."""
        self._read_again.set()
        self._was_read.set()
        self._was_read = asyncio.Event()

    async def changes(self, record: JobRecord) -> AsyncGenerator[JobRecord, None]:
        """Yield the record, and again when records were read or `wake` was called, until it is removed."""
        self._watched[record.id] += 1
        self._records.setdefault(record.id, record)  # what is there was read later
        self._read_again.set()
        try:
            while (found := self._records.get(record.id)) is not None:
                was_read = self._was_read
                yield found
                await was_read.wait()
        finally:
            self._watched[record.id] -= 1
            if not self._watched[record.id]:
                del self._watched[record.id]
                self._records.pop(record.id, None)

    async def run(self) -> None:
        """Read the records. Runs for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):  # `wait_for` may forget that it is cancelled
                    await self._read_again.wait()
            self._read_again.clear()
            if watched := list(self._watched):
                with suppress(JobsUnavailable):  # watchers wait for its return
                    found = await self._read(watched)
                    for identity in watched:
                        if identity in found:
                            self._records[identity] = found[identity]
                        else:
                            self._records.pop(identity, None)
                    self._was_read.set()
                    self._was_read = asyncio.Event()
            await asyncio.sleep(_LEAST_PAUSE_S)
