"""The protocol of a store of jobs, as their runner uses it, and what stores share: limits, order, parts of results.

`disk_store.py` has the jobs of one server; a database may have those of several servers. Owners take turns, and a
result that is made in parts is two files that only grow: the samples of finished parts, and a list of these. A part
counts once its line is in the list, which is written after its samples; the rest that a server left when it died is cut
off.
"""

from __future__ import annotations

import bisect
import os
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from types import TracebackType
from typing import BinaryIO, ClassVar, Protocol

from asr_server.core.errors import Overloaded
from asr_server.jobs.record import JobRecord, JobRequest, RecordState


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

    def keep_transcript(self, identity: str, stored: bytes) -> None:
        """Keep what the result was made of, beside it."""

    async def keep_parts(self, identity: str, parts: JobParts) -> None:
        """Keep the finished parts for whichever server runs the job next."""


class JobStore(Protocol):
    """Jobs with their files, of which a runner claims one after the other. Used from the event loop.

    Methods raise `JobsUnavailable` where there can be no jobs now, and those with a claim `ClaimLost`. Jobs of another
    owner are not found.
    """

    is_shared: ClassVar[bool]  # other servers claim its jobs too

    @property
    def counts(self) -> Mapping[RecordState, int]:
        """Count the jobs in each state, on all servers."""

    @property
    def waiting_follow_ups(self) -> int:
        """Count the ended jobs with requests that no other server will send."""

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

    async def transcript(self, identity: str) -> bytes:
        """Return what `JobFiles.keep_transcript` stored, b"" for nothing."""

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

    async def cancel(self, identity: str, owner: str, stop: Callable[[], Awaitable[None]]) -> JobRecord | None:
        """End the owner's job without a result and return its record, None if there is none. A job that is over stays
        as it is. `stop` ends its run on this server."""

    async def expire(self) -> None:
        """Remove jobs whose time is over."""

    async def claim_follow_up(self, busy: Collection[str]) -> Claim | None:
        """Take an ended job whose next request is due, the earliest of owners who are not `busy`; None if there is
        none. Nobody else takes it for the time of an attempt."""

    async def keep_follow_up(self, claim: Claim, record: JobRecord) -> None:
        """Store the record of such a job, whose request was sent."""


SAMPLE_BYTES = 2
_LINE = re.compile(rb"([0-9a-f]{64}) (\d{1,12})\n")
_BLOCK_BYTES = 480_000


@dataclass(frozen=True, slots=True)
class JobPart:
    """A finished part of a result."""

    key: str  # a digest of all that its samples depend on
    samples: int  # how many, of 16 bits, mono


class JobParts:
    """Both files, open for appending and reading. One user at a time; every method may wait for the disk and raise
    `OSError`."""

    def __init__(self, audio: BinaryIO, listed: BinaryIO) -> None:
        self._audio, self._list = audio, listed
        self.finished = self._read()
        self.cut(len(self.finished))

    def __enter__(self) -> JobParts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._audio.close()
        self._list.close()

    @property
    def samples(self) -> int:
        return sum(part.samples for part in self.finished)

    def cut(self, count: int) -> None:
        """Forget all but the first `count` parts."""
        del self.finished[count:]
        self._list.truncate(sum(len(_line(part)) for part in self.finished))
        self._audio.truncate(self.samples * SAMPLE_BYTES)

    def write(self, data: bytes) -> None:
        self._audio.write(data)

    def finish_part(self, key: str) -> None:
        """End the part. When this returns, the part is on the disk."""
        self._audio.flush()
        os.fsync(self._audio.fileno())
        size = os.fstat(self._audio.fileno()).st_size
        part = JobPart(key, size // SAMPLE_BYTES - self.samples)
        self._list.write(_line(part))
        self._list.flush()
        os.fsync(self._list.fileno())
        self.finished.append(part)

    def samples_of(self, number: int) -> bytes:
        """Return the samples of a finished part."""
        begin = sum(part.samples for part in self.finished[:number]) * SAMPLE_BYTES
        return os.pread(self._audio.fileno(), self.finished[number].samples * SAMPLE_BYTES, begin)

    def blocks(self, part: JobPart) -> Iterator[bytes]:
        """The samples of the next part, from the beginning of the file on, a few seconds at a time."""
        left = part.samples * SAMPLE_BYTES
        while left:
            data = self._audio.read(min(left, _BLOCK_BYTES))
            if not data:
                raise OSError("the samples of a part are missing")
            left -= len(data)
            yield data

    def rewind(self) -> None:
        self._audio.seek(0)

    def _read(self) -> list[JobPart]:
        self._list.seek(0)
        found: list[JobPart] = []
        kept = os.fstat(self._audio.fileno()).st_size
        for line in self._list:
            matched = _LINE.fullmatch(line)
            if matched is None:
                break
            part = JobPart(matched[1].decode(), int(matched[2]))
            kept -= part.samples * SAMPLE_BYTES
            if kept < 0:
                break
            found.append(part)
        return found


def _line(part: JobPart) -> bytes:
    return f"{part.key} {part.samples}\n".encode()


# The longest attempt of a request that is sent when a job has ended, and how long nobody else makes one meanwhile.
ATTEMPT_S, ATTEMPT_LEASE_S = 100.0, 120.0
# One is transcribed while another is decoded or rendered. More of one caller would only share the same batch. The third
# place is for another one, who need not wait until one of these ends.
AT_ONCE, AT_ONCE_EACH = 3, 2
_RETRY_AFTER_S = 60
# Each may take some 100 MiB until it is on the disk.
_TEXTS_AT_ONCE, _TEXTS_AT_ONCE_EACH = 4, 2


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of all jobs and of each owner's. A limit of an owner that is 0 means: with several keys as much as the
    owner leaves free, otherwise no limit.
    """

    ttl_s: float  # finished jobs are kept for so long
    timeout_s: float  # of one run
    max_jobs: int  # that wait and run
    key_max_jobs: int = 0  # of one owner, that wait and run
    key_max_bytes: int = 0  # of all jobs of one owner
    several_keys: bool = False  # the server has more than one key
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
    """Jobs that wait: owners take turns, each with its first job of the highest priority, and have at most `each` under
    way."""

    def __init__(self, each: int) -> None:
        self._each = each
        # Ids with their ranks, the next job first; the owner whose turn is next comes first.
        self._waiting: dict[str, list[tuple[int, str]]] = {}

    def put(self, record: JobRecord) -> None:
        """Add a job, which waits from now on."""
        waiting = self._waiting.setdefault(record.owner, [])
        bisect.insort(waiting, (-record.priority.rank, record.id), key=itemgetter(0))  # behind others of its rank

    def remove(self, owner: str, identity: str) -> None:
        """Remove a job, if it waits."""
        if left := [job for job in self._waiting.get(owner, ()) if job[1] != identity]:
            self._waiting[owner] = left
        else:
            self._waiting.pop(owner, None)

    def next(self, under_way: Counter[str]) -> str | None:
        """Take the job whose turn it is, None if there is none. `under_way`: how many each owner has."""
        for owner, waiting in self._waiting.items():
            if under_way[owner] < self._each:
                _, identity = waiting.pop(0)
                del self._waiting[owner]
                if waiting:
                    self._waiting[owner] = waiting  # behind the others
                return identity
        return None
