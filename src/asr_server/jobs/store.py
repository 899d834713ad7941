"""The protocol of a store of jobs, as their runner uses it. `disk_store.py` has the jobs of one server; a database may
have those of several servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, Protocol

from asr_server.jobs.parts import JobParts
from asr_server.jobs.record import JobRecord, JobRequest, JobState


class ClaimLost(Exception):
    """The job was removed, or taken over by another server."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this server may write to."""

    record: JobRecord
    number: int  # a job that is claimed again gets the next one
    lost: int = 0  # how often the job was lost by servers that ran it

    @property
    def id(self) -> str:
        """The job's id."""
        return self.record.id


class Content(Protocol):
    """The content of a result, which may be larger than the memory: it is read piece by piece."""

    @property
    def size_bytes(self) -> int:
        """The size of the whole content."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the content once, from the beginning to the end. Raises when the rest cannot be read."""

    def close(self) -> None:
        """Give up what reading needs."""


class JobFiles(Protocol):
    """The files of jobs that run. All methods but the last wait for the disk and raise `OSError`."""

    def request(self, record: JobRecord) -> JobRequest:
        """Return the request of a job that is not over, with its clips."""

    def recording(self, identity: str) -> BinaryIO:
        """Open the uploaded file, or the stored text, for reading."""

    def parts(self, identity: str) -> JobParts:
        """Open the finished parts of a job whose result is made in parts."""

    def new_result(self, identity: str) -> BinaryIO:
        """Open an empty file for a result that is too large for memory. The caller closes it."""

    def keep_result(self, identity: str, written: BinaryIO) -> None:
        """Make the complete file of `new_result` the result."""

    async def keep_parts(self, identity: str, parts: JobParts) -> None:
        """Keep the finished parts for whichever server runs the job next."""


class JobStore(Protocol):
    """Jobs with their files, of which a runner claims one after the other. Used from the event loop.

    Methods raise `JobsUnavailable` where there can be no jobs now, and those with a claim `ClaimLost`. Jobs of another
    owner are not found.
    """

    is_shared: ClassVar[bool]  # other servers claim its jobs too

    @property
    def counts(self) -> Mapping[JobState, int]:
        """Count the jobs in each state, on all servers."""

    async def start(self) -> None:
        """Begin to answer. Raises nothing: what is missing is tried again."""

    async def close(self) -> None:
        """Stop. Jobs that are not over run again, on the next server or on another."""

    def wake(self) -> None:
        """Make all `changes` yield once more."""

    async def unfinished(self) -> Counter[str]:
        """Count the jobs that arrive, wait or run, by owner."""

    async def add(self, record: JobRecord, recording: BinaryIO, size_bytes: int) -> None:
        """Store a new job, which waits from now on. Raises `Overloaded` if there is no room for so many bytes."""

    async def get(self, identity: str, owner: str) -> JobRecord | None:
        """Return the record of the owner's job, None if there is none."""

    async def content(self, identity: str) -> Content:
        """Return the content of a job's result. Raises `JobNotFound` if it was removed meanwhile."""

    def changes(self, record: JobRecord) -> AsyncGenerator[JobRecord, None]:
        """Yield the job's record, and again when it may have changed, until the job is removed."""

    async def claim(self, running: Collection[JobRecord]) -> Claim | None:
        """Take the job whose turn it is, of an owner of whom not too many are `running`; None if there is none."""

    async def renew(self, claim: Claim) -> None:
        """Keep the claim for another while, and publish its record."""

    async def release(self, claim: Claim, *, lost: bool) -> None:
        """Let the job wait again. `lost`: the server failed on it."""

    def files(self, claim: Claim) -> AbstractAsyncContextManager[JobFiles]:
        """Hold the files of a claimed job. Raises `OSError` where they have no place."""

    async def end(self, claim: Claim, files: JobFiles | None, ended: JobRecord, content: bytes | None) -> JobRecord:
        """Store how the job ended, and return the record as it is stored; a result that cannot be stored is a failure.

        `files`, `content`: of a result; without `content` it is that of `keep_result`.
        """

    async def remove(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> bool:
        """Remove the owner's job with its files; False if there is none. `stop` ends its run on this server."""

    async def expire(self) -> None:
        """Remove jobs whose time is over."""
