"""What a runner of jobs offers the routes. `runner.py` has that of one server, `shared_jobs.py` that of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import BinaryIO, ClassVar

from asr_server.jobs.content import Content
from asr_server.jobs.record import JobRecord, JobRequest, JobState
from asr_server.jobs.shares import ArrivingTexts
from asr_server.jobs.work import TextSize
from asr_server.recordings.requests import Result


class JobRunner(ABC):
    """Accepts jobs, runs them, and answers for them. Used from the event loop.

    Jobs of another owner are not found. Every method raises `JobsUnavailable` where there can be no jobs now.
    `is_shared`: whether other servers have the same jobs.
    """

    is_shared: ClassVar[bool]

    def __init__(self) -> None:
        self._arriving_texts = ArrivingTexts()

    @property
    @abstractmethod
    def pending(self) -> int:
        """Jobs that wait or run, as far as this server has to stay for them."""

    @property
    @abstractmethod
    def counts(self) -> Mapping[JobState, int]:
        """How many jobs are in each state; if they are shared, on all servers."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to work, on the jobs of an earlier server too. Raises nothing: what is missing is tried again."""

    @abstractmethod
    def drain(self) -> None:
        """End all `watch` calls: the server is about to stop, and does not wait for jobs."""

    @abstractmethod
    async def close(self) -> None:
        """Stop. Jobs that are not finished run again, on the next server or on another."""

    @abstractmethod
    async def check_room(self, owner: str = "") -> None:
        """Raise `Overloaded` if the owner or all together have too many jobs. For callers whose recording has not
        arrived yet."""

    @asynccontextmanager
    async def room_for_text(self, owner: str = "", caller: str = "") -> AsyncIterator[None]:
        """Hold room in the memory for a text that has not arrived yet, until the block ends. `caller`: the owner, or an
        address. Raises as `check_room`."""
        await self.check_room(owner)
        with self._arriving_texts.one(caller or owner):
            yield

    @abstractmethod
    async def add(
        self, request: JobRequest, recording: BinaryIO, owner: str = "", *, text: TextSize | None = None
    ) -> JobRecord:
        """Accept a job. `recording`: or the text, of that size. Raises `Overloaded` if too many wait or take too much
        space."""

    @abstractmethod
    async def get(self, identity: str, owner: str = "") -> JobRecord:
        """The job's record. Raises `JobNotFound`."""

    @abstractmethod
    async def result(self, identity: str, owner: str = "") -> tuple[Result, Content]:
        """The job's answer, and its content, which the caller closes. Raises `JobNotFound` and `JobNotFinished`; the
        record says why a job failed."""

    @abstractmethod
    def watch(self, identity: str, owner: str = "") -> AsyncGenerator[JobRecord, None]:
        """The job's record, and again at every change, until the job is over or removed.

        Raises `JobNotFound`, and `ShuttingDown` if another server, or the next one, will answer for the job.
        """

    @abstractmethod
    async def remove(self, identity: str, owner: str = "") -> None:
        """Cancel a job if it runs, and remove it. Raises `JobNotFound`."""
