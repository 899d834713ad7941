"""The store of jobs: the statements that keep jobs in a database. One server uses the database, or several share it.

A claim has a number, which increases with each claim of the same job. Every write to a running job names the number
and locks the job's row, so a server that has lost its claim can write nothing more.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

from loguru import logger

from asr_server.core.errors import InvalidInput, JobsUnavailable, Overloaded
from asr_server.jobs.database import CLIPS, RECORDING, RESULT, TRANSCRIPT, Postgres, Run, Sqlite
from asr_server.jobs.record import DAMAGED, VERSION, JobRecord, RecordFormat, RecordState, clips

# How long a claim on a job lasts after its last renewal, and how long a claim on the request of an ended job lasts.
LEASE_S, ATTEMPT_LEASE_S = 20.0, 120.0
# One job of an owner is transcribed while another is decoded or rendered; a third would only share their batch. So the
# third slot is for another owner, who need not wait until one of the two ends.
AT_ONCE, AT_ONCE_EACH = 3, 2
_RETRY_AFTER_S = 60
# The size of a row without its files.
_ROW_BYTES = 4096

_SHARES = """
SELECT owner, count(CASE WHEN state IN ('arriving', 'queued', 'running') THEN 1 END) AS unfinished,
       CAST(sum(size_bytes) AS bigint) AS bytes, CAST(sum(reserved_bytes) AS bigint) AS reserved
FROM asr_jobs GROUP BY owner
"""
# Keeps other servers from adding jobs until the transaction ends: two servers could fill the same free space.
_LOCK_ROOM = "UPDATE asr_jobs_schema SET version = version"
_ADD = """
INSERT INTO asr_jobs (id, place, owner, state, version, record, priority, size_bytes, reserved_bytes, lease_until)
VALUES ($1, (SELECT coalesce(max(place), 0) + 1 FROM asr_jobs), $2, 'arriving', $3, $4, $5, $6, $6, asr_now() + $7)
ON CONFLICT (id) DO NOTHING RETURNING id
"""
_ACCEPT = """
UPDATE asr_jobs SET state = 'queued', reserved_bytes = $3, lease_until = NULL
WHERE id = $1 AND claim = $2 AND state = 'arriving' RETURNING id
"""
_GET = "SELECT id, state, record, version, claim, lost, started_at FROM asr_jobs"
_THERE = "state NOT IN ('arriving', 'removing')"
# The owner with the fewest running jobs comes first, then the one whose turn is longest ago, then the one with the
# oldest job. So a priority orders only the jobs of its owner. A server never takes over its own job.
_CLAIM = """
UPDATE asr_jobs
SET state = 'running', claim = claim + 1, lost = lost + CASE WHEN state = 'running' THEN 1 ELSE 0 END,
    server = $1, started_at = $2, lease_until = asr_now() + $3
WHERE id = (
    SELECT job.id FROM asr_jobs AS job
    LEFT JOIN asr_job_turns AS turns ON turns.owner = job.owner
    LEFT JOIN (
        SELECT owner, count(*) AS jobs, count(CASE WHEN server = $1 THEN 1 END) AS mine FROM asr_jobs
        WHERE state = 'running' AND (lease_until >= asr_now() OR server = $1) GROUP BY owner
    ) AS under_way ON under_way.owner = job.owner
    LEFT JOIN (
        SELECT owner, min(place) AS place FROM asr_jobs WHERE state IN ('queued', 'running') GROUP BY owner
    ) AS firsts ON firsts.owner = job.owner
    WHERE (job.state = 'queued' OR $4 AND job.state = 'running' AND job.lease_until < asr_now() AND job.server <> $1)
      AND job.version <= $5 AND coalesce(under_way.mine, 0) < $6
    ORDER BY coalesce(under_way.jobs, 0), coalesce(turns.turn, 0), firsts.place, job.priority DESC, job.place
    LIMIT 1 {locked}
)
RETURNING id, state, record, version, claim, lost, started_at, owner
"""
_TURN = """
INSERT INTO asr_job_turns SELECT $1, coalesce(max(turn), 0) + 1 FROM asr_job_turns WHERE true
ON CONFLICT (owner) DO UPDATE SET turn = excluded.turn
"""
_HOLD = """
UPDATE asr_jobs SET lease_until = asr_now() + $3
WHERE id = $1 AND claim = $2 AND state IN ('arriving', 'running') RETURNING id
"""
_RENEW = """
UPDATE asr_jobs SET record = $3, version = $4, lease_until = asr_now() + $5
WHERE id = $1 AND claim = $2 AND state = 'running' RETURNING id
"""
_RELEASE = """
UPDATE asr_jobs SET state = 'queued', lost = lost + $3, server = '', lease_until = NULL
WHERE id = $1 AND claim = $2 AND state = 'running' RETURNING id
"""
_END = """
UPDATE asr_jobs SET state = $3, record = $4, version = $5, size_bytes = $6, reserved_bytes = 0, server = '',
    remove_at = asr_now() + $7, lease_until = asr_now() + $8
WHERE id = $1 AND claim = $2 AND state = 'running' RETURNING id
"""
_DROP_CHUNKS = "DELETE FROM asr_job_chunks WHERE job = $1 AND file NOT IN ($2, $3)"
_TAKE = """
UPDATE asr_jobs SET state = 'running', claim = claim + 1
WHERE id = $1 AND owner = $2 AND state IN ('queued', 'running') RETURNING claim
"""
_SET_STATE = "UPDATE asr_jobs SET state = $2 WHERE id = $1"
_EXPIRED = """
SELECT id, owner FROM asr_jobs
WHERE remove_at < asr_now() OR state = 'arriving' AND lease_until < asr_now() OR state = 'removing'
"""
# The request of an ended job is due once `lease_until` has passed: the wait, or the lease, of the last attempt.
_CLAIM_FOLLOW_UP = """
UPDATE asr_jobs SET claim = claim + 1, server = $3, lease_until = asr_now() + $4
WHERE id = (
    SELECT id FROM asr_jobs AS job
    WHERE state IN ('succeeded', 'failed', 'cancelled') AND lease_until <= asr_now() AND version <= $1
      AND owner <> $2
    ORDER BY lease_until LIMIT 1 {locked}
)
RETURNING id, state, record, version, claim, lost, started_at
"""
_KEEP_FOLLOW_UP = """
UPDATE asr_jobs SET record = $3, version = $4, server = '', lease_until = asr_now() + $5
WHERE id = $1 AND claim = $2 RETURNING id
"""
_COUNT = "SELECT state, count(*) AS jobs, count(lease_until) AS due FROM asr_jobs GROUP BY state"


class ClaimLost(Exception):
    """The job was removed, or taken over by another server."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this server may write to."""

    record: JobRecord
    number: int  # the next claim of the same job gets the next number
    lost: int = 0  # how often the job was lost by servers that ran it

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of all jobs. With several keys, an owner may use no more than what stays free for the others."""

    ttl_s: float  # how long finished jobs are kept
    timeout_s: float  # of one run
    max_jobs: int  # waiting and running
    several_keys: bool = False  # the server has more than one key

    def check_jobs(self, jobs: Counter[str], owner: str) -> None:
        """Raise `Overloaded` if there is no room for one more job. `jobs`: how many wait and run, by owner."""
        free = self.max_jobs - jobs.total()
        if free <= 0:
            raise Overloaded("Too many jobs are waiting; try again later.", retry_after_s=_RETRY_AFTER_S)
        if owner and self.several_keys and jobs[owner] >= free:
            raise Overloaded(
                f"This key has {jobs[owner]} jobs waiting or running, and may have no more; try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )

    def check_bytes(self, kept: int, free: int, owner: str) -> None:
        """Raise `Overloaded` if the owner's jobs are too large, `JobsUnavailable` if no owner has room.
        `kept`: the bytes of the owner's jobs, with the new one. `free`: the bytes left for all jobs after that."""
        if owner and self.several_keys and kept > free:
            raise Overloaded(
                f"The jobs of this key may take {max(0, free) // 2**20} MiB, and with this one would take "
                f"{kept // 2**20}: delete finished ones, or try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        if free < 0:
            raise JobsUnavailable("The disk or the database (JOBS_DATABASE_MB) has no room for this job.")


class JobStore:
    """Jobs and their files. An owner finds only its own jobs. Methods raise `JobsUnavailable` while the database or its
    files cannot be used; methods that take a claim also raise `ClaimLost`."""

    def __init__(
        self, database: Sqlite | Postgres, limits: JobLimits, records: RecordFormat, lease_s: float = LEASE_S
    ) -> None:
        self.database = database
        self.limits, self._format, self._lease_s = limits, records, lease_s
        self._server = secrets.token_hex(8)
        self.counts: Counter[RecordState] = Counter()  # on all servers, at the last count
        self.waiting_follow_ups = 0  # ended jobs with requests that no other server will send

    async def unfinished(self) -> Counter[str]:
        return Counter({row["owner"]: row["unfinished"] for row in await self._run(_SHARES)})

    async def add(self, record: JobRecord, recording: BinaryIO, size_bytes: int) -> None:
        """Store a new job if there is room for it. It then waits for its run."""
        stored, claim = self._format.dumped(record), Claim(record, 0)
        values = record.id, record.owner, VERSION, stored, record.priority.rank, size_bytes, self._lease_s
        async with self.database.transaction() as run:
            await run(_LOCK_ROOM)
            await self._check_room(await run(_SHARES), record.owner, size_bytes)
            if not await run(_ADD, *values):
                raise Overloaded("The job with this Idempotency-Key is being stored; try again.", retry_after_s=1)
        held = partial(self._held, claim)
        try:
            await self.database.write(held, record.id, RECORDING, recording)
            for name, clip in zip(CLIPS, clips(record.request), strict=False):
                await self.database.write(held, record.id, name, BytesIO(clip))
            await self._write(_ACCEPT, claim, record.expected_bytes)
        except BaseException as error:
            with suppress(JobsUnavailable):  # then the row is removed after its lease, or at the next start
                await self.remove(record.id, record.owner)
            if isinstance(error, ClaimLost):
                raise JobsUnavailable("The database of jobs was too slow for the recording.") from None
            if isinstance(error, OSError):
                raise JobsUnavailable(f"The recording cannot be stored ({error.strerror}).") from error
            raise
        self.counts[RecordState.QUEUED] += 1

    async def get(self, identity: str, owner: str) -> JobRecord | None:
        """Return the record of the owner's job, None if there is none."""
        rows = await self._run(f"{_GET} WHERE id = $1 AND owner = $2 AND {_THERE}", identity, owner)
        return self._record(rows[0]) if rows else None

    async def records(self, identities: Collection[str]) -> dict[str, JobRecord]:
        """Return the records of these jobs by id. Jobs that are gone or unreadable are left out."""
        places = ", ".join(f"${number}" for number in range(1, len(identities) + 1))
        rows = await self._run(f"{_GET} WHERE id IN ({places}) AND {_THERE}", *identities)
        found = {}
        for row in rows:
            with suppress(JobsUnavailable):
                found[row["id"]] = self._record(row)
        return found

    async def size_bytes(self, identity: str) -> int:
        """Return the size of a job's result. Raises `job_not_found` if it was removed."""
        with _reading():
            return await self.database.size_bytes(identity, RESULT)

    async def transcript(self, identity: str) -> bytes:
        """Return the stored transcript of a job's result, or b"" if there is none."""
        try:
            with _reading():
                return b"".join([piece async for piece in self.database.pieces(identity, TRANSCRIPT)])
        except InvalidInput:
            return b""

    async def claim(self, started_at: float) -> Claim | None:
        """Claim the next job, or return None. Owners with `AT_ONCE_EACH` jobs on this server are passed over."""
        take_over = self.database.steady_s > self._lease_s  # after an outage, others first renew their claims
        values = self._server, started_at, self._lease_s, take_over, VERSION, AT_ONCE_EACH
        while True:
            async with self.database.transaction() as run:
                if not (rows := await run(_CLAIM.format(locked=self.database.locked), *values)):
                    return None
                try:
                    record = self._format.loaded(rows[0]["record"]).queued_again()
                except DAMAGED as error:
                    logger.warning("job is unreadable", id=rows[0]["id"], reason=type(error).__name__)
                    await run("UPDATE asr_jobs SET state = 'unreadable' WHERE id = $1", rows[0]["id"])
                    continue
                await run(_TURN, rows[0]["owner"])
            record = replace(record, state=RecordState.RUNNING, started_at=started_at)
            return Claim(record, rows[0]["claim"], rows[0]["lost"])

    async def renew(self, claim: Claim) -> None:
        """Renew the claim for another lease, and store its record for other servers."""
        await self._write(_RENEW, claim, self._format.dumped(claim.record), VERSION, self._lease_s)

    async def release(self, claim: Claim, *, lost: bool) -> None:
        """Queue the job again. `lost`: the server failed on it."""
        await self._write(_RELEASE, claim, int(lost))

    async def end(
        self, claim: Claim, ended: JobRecord, content: BinaryIO | None = None, transcript: bytes = b""
    ) -> JobRecord:
        """Store the end of the job, remove its input, and return its record. A job whose result has no room fails."""
        size_bytes = _ROW_BYTES
        if content is not None:
            try:
                size_bytes += await self._write_end(claim, RESULT, content)
                if transcript:
                    with suppress(OSError):  # without space the result has only one format
                        size_bytes += await self._write_end(claim, TRANSCRIPT, BytesIO(transcript))
            except OSError as error:
                ended = ended.failed(JobsUnavailable(f"The result cannot be stored ({error.strerror})."))
        async with self._held(claim) as run:
            await self._store_end(run, claim.number, ended, size_bytes)
        await self._drop_input(ended)
        return ended

    async def cancel(self, ended: JobRecord) -> bool:
        """Store that a job was cancelled, wherever it runs. Return False if it is over or gone."""
        async with self.database.transaction() as run:
            if not (rows := await run(_TAKE, ended.id, ended.owner)):
                return False
            await self._store_end(run, rows[0]["claim"], ended, _ROW_BYTES)
        await self._drop_input(ended)
        return True

    async def _store_end(self, run: Run, number: int, ended: JobRecord, size_bytes: int) -> None:
        due_s = 0.0 if ended.follow_up else None
        values = str(ended.state), self._format.dumped(ended), VERSION, size_bytes, self.limits.ttl_s, due_s
        await run(_DROP_CHUNKS, ended.id, *_kept(ended))
        await run(_END, ended.id, number, *values)

    async def _drop_input(self, ended: JobRecord) -> None:
        with suppress(JobsUnavailable):  # the input is removed with the job
            await self.database.drop_files(ended.id, _kept(ended))

    async def remove(self, identity: str, owner: str) -> bool:
        """Remove the owner's job and its files. Return False if there is no such job. If files cannot be removed, the
        job stays, and a running job is queued again, since its run was stopped."""
        rows = await self._run(f"{_GET} WHERE id = $1 AND owner = $2", identity, owner)
        if not rows:
            return False
        with suppress(JobsUnavailable):  # on a full disk, removing the files first makes room
            await self._run(_SET_STATE, identity, "removing")
        try:
            await self.database.drop_files(identity)
        except JobsUnavailable:
            await self._run(_SET_STATE, identity, "queued" if rows[0]["state"] == "running" else rows[0]["state"])
            raise
        await self._run("DELETE FROM asr_jobs WHERE id = $1", identity)
        return True

    async def expire(self) -> None:
        """Remove jobs whose time is over, those that never arrived, and those whose removal was interrupted."""
        for row in await self._run(_EXPIRED):
            with suppress(JobsUnavailable):  # the other jobs are removed anyway
                await self.remove(row["id"], row["owner"])

    async def claim_follow_up(self, busy: str) -> Claim | None:
        """Claim the ended job whose request has been due longest, or return None. Passes over the owner who is `busy`.
        Nobody else can claim the job during an attempt."""
        statement = _CLAIM_FOLLOW_UP.format(locked=self.database.locked)
        rows = await self._run(statement, VERSION, busy, self._server, ATTEMPT_LEASE_S)
        return Claim(self._record(rows[0]), rows[0]["claim"]) if rows else None

    async def keep_follow_up(self, claim: Claim, record: JobRecord, wait_s: float | None) -> None:
        """Store the record after an attempt. The request is sent again after `wait_s`, or never if that is None."""
        await self._write(_KEEP_FOLLOW_UP, claim, self._format.dumped(record), VERSION, wait_s)

    async def count(self) -> None:
        """Count the jobs in each state, and those whose requests only this server will send."""
        rows = [row for row in await self._run(_COUNT) if row["state"] in set(RecordState)]
        self.counts = Counter({RecordState(row["state"]): row["jobs"] for row in rows})
        due = sum(row["due"] for row in rows if RecordState(row["state"]).over)
        self.waiting_follow_ups = 0 if self.database.is_shared else due

    async def _check_room(self, rows: list[Any], owner: str, size_bytes: int) -> None:
        shares = {row["owner"]: row for row in rows}
        self.limits.check_jobs(Counter({one: row["unfinished"] for one, row in shares.items()}), owner)
        kept = size_bytes + (shares[owner]["bytes"] if owner in shares else 0)
        total, reserved = (sum(row[name] for row in rows) + size_bytes for name in ("bytes", "reserved"))
        self.limits.check_bytes(kept, await self.database.free_bytes(total, reserved), owner)

    async def _write_end(self, claim: Claim, name: str, source: BinaryIO) -> int:
        held = partial(self._held, claim)
        try:
            return await self.database.write(held, claim.id, name, source)
        except OSError:  # the input is no longer needed, and removing it may make room
            with suppress(JobsUnavailable):
                await self.database.drop_files(claim.id, (RESULT,))
            return await self.database.write(held, claim.id, name, source)

    def _record(self, row: Any) -> JobRecord:
        if row["version"] > VERSION:
            raise JobsUnavailable("A newer version of the server stored the job.")
        try:
            record = self._format.loaded(row["record"])
            state = RecordState(row["state"])
        except DAMAGED:
            raise JobsUnavailable("The job's record cannot be read.") from None
        if state is RecordState.QUEUED:
            return record.queued_again()
        return replace(record, state=state, started_at=row["started_at"])

    async def _write(self, statement: str, claim: Claim, *values: Any) -> None:
        if not await self._run(statement, claim.id, claim.number, *values):
            raise ClaimLost

    async def _run(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.transaction() as run:
            return await run(statement, *values)

    @asynccontextmanager
    async def _held(self, claim: Claim) -> AsyncIterator[Run]:
        """A transaction in which nobody else can claim the job."""
        async with self.database.transaction() as run:
            if not await run(_HOLD, claim.id, claim.number, self._lease_s):
                raise ClaimLost
            yield run


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InvalidInput("The job was removed.", code="job_not_found", param="job_id") from None
    except OSError as error:
        raise JobsUnavailable(f"The result cannot be read ({error.strerror}).") from error


def _kept(ended: JobRecord) -> tuple[str, str]:
    return (RESULT, TRANSCRIPT) if ended.result is not None else ("", "")
