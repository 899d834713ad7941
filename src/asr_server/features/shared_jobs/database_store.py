"""Jobs in a database that several servers share. A server that runs a job has a claim to it, for a while.

A claim has a number, and a job that is taken over gets the next one. Each statement that writes something of a job that
runs names the number and keeps the job's row locked, so that a server that has lost its claim writes nothing more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Any, BinaryIO

from loguru import logger

from asr_server.core.errors import JobsUnavailable, Overloaded
from asr_server.features.shared_jobs.database import REMOVE_S, ROOM_LOCK, Database
from asr_server.jobs.record import DAMAGED, VERSION, JobRecord, NewerVersion, RecordFormat, RecordState
from asr_server.jobs.store import AT_ONCE_EACH, ATTEMPT_LEASE_S, Claim, ClaimLost

RECORDING, RESULT, TRANSCRIPT = "recording", "result", "transcript"
_CHUNK_BYTES = 1024 * 1024
# Of a row without its content.
_ROW_BYTES = 4096
_ARRIVING, _UNREADABLE = "arriving", "unreadable"

_SHARES = """
SELECT owner, count(*) FILTER (WHERE state IN ('arriving', 'queued', 'running')) AS unfinished,
       sum(size_bytes)::bigint AS bytes
FROM asr_jobs GROUP BY owner
"""
_ADD = """
INSERT INTO asr_jobs (id, owner, state, version, record, size_bytes, lease_until, priority)
VALUES ($1, $2, 'arriving', $3, $4, $5, now() + $6, $7)
ON CONFLICT (id) DO NOTHING RETURNING id
"""
# Owners take turns, and who has fewer jobs under way is first; of owners without a turn so far the one whose job came
# first, so that priorities order the jobs of one owner alone. Several servers may do this at the same time.
_NEXT = """
SELECT job.id, job.state, job.record, job.claim, job.lost
FROM asr_jobs AS job
LEFT JOIN asr_job_turns AS turns USING (owner)
LEFT JOIN (
    SELECT owner, count(*) AS jobs FROM asr_jobs WHERE state = 'running' AND lease_until >= now() GROUP BY owner
) AS under_way USING (owner)
LEFT JOIN (
    SELECT owner, min(place) AS place FROM asr_jobs WHERE state IN ('queued', 'running') GROUP BY owner
) AS firsts USING (owner)
WHERE (job.state = 'queued' OR $1 AND job.state = 'running' AND job.lease_until < now())
  AND job.version <= $2 AND owner <> ALL($3::text[]) AND job.id <> ALL($4::text[])
ORDER BY coalesce(under_way.jobs, 0), coalesce(turns.turn, 0), firsts.place, job.priority DESC, job.place
LIMIT 1 FOR UPDATE OF job SKIP LOCKED
"""
_CLAIM = """
UPDATE asr_jobs SET state = 'running', record = $2, version = $3, claim = $4, lost = $5, lease_until = now() + $6
WHERE id = $1
"""
_TURN = """
INSERT INTO asr_job_turns VALUES ($1, nextval('asr_job_turn'))
ON CONFLICT (owner) DO UPDATE SET turn = excluded.turn
"""
_RENEW = """
UPDATE asr_jobs SET record = $3, version = $4, lease_until = now() + $5
WHERE id = $1 AND claim = $2 AND state = 'running'
"""
_RELEASE = """
UPDATE asr_jobs SET state = 'queued', record = $3, version = $4, lost = lost + $5, lease_until = NULL
WHERE id = $1 AND claim = $2 AND state = 'running'
"""
_END = """
UPDATE asr_jobs
SET state = $3, record = $4, version = $5, size_bytes = $6, remove_at = now() + $7, lease_until = now() + $8
WHERE id = $1 AND claim = $2 AND state = 'running'
"""
# Who ends the job has a claim to it like one that runs it: if it dies before the end, the job runs again.
_CANCEL = """
UPDATE asr_jobs SET state = 'running', claim = claim + 1, lease_until = now() + $3
WHERE id = $1 AND owner = $2 AND state IN ('queued', 'running')
RETURNING record, claim
"""
# The next request of an ended job is due when the lease of the last attempt has passed.
_CLAIM_FOLLOW_UP = """
UPDATE asr_jobs SET claim = claim + 1, lease_until = now() + $3
WHERE id = (
    SELECT id FROM asr_jobs
    WHERE state IN ('succeeded', 'failed', 'cancelled') AND lease_until < now()
      AND version <= $1 AND owner <> ALL($2::text[])
    ORDER BY lease_until LIMIT 1 FOR UPDATE SKIP LOCKED
)
RETURNING id, record, claim
"""
_KEEP_FOLLOW_UP = "UPDATE asr_jobs SET record = $3, version = $4, lease_until = now() + $5 WHERE id = $1 AND claim = $2"
# Locks the job's row until the end of the transaction.
_HOLD = """
UPDATE asr_jobs SET lease_until = now() + $3 WHERE id = $1 AND claim = $2 AND state IN ('arriving', 'running')
"""
_SWEEP = """
DELETE FROM asr_jobs WHERE id IN (
    SELECT id FROM asr_jobs WHERE remove_at < now() OR state = 'arriving' AND lease_until < now()
    LIMIT 1 FOR UPDATE SKIP LOCKED
)
"""
_NOTHING = ("UPDATE 0", "DELETE 0")


@dataclass(frozen=True, slots=True)
class Shares:
    """The jobs of the owners: those that arrive, wait or run, and the bytes of all."""

    unfinished: Counter[str]
    size_bytes: Counter[str]


class DatabaseStore:
    """All methods raise `JobsUnavailable` where the database does not answer, and those with a claim `ClaimLost`.

    `lease_s`: how long a claim is good for after it was last renewed.
    """

    def __init__(self, database: Database, lease_s: float, records: RecordFormat) -> None:
        self.database = database
        self._lease = timedelta(seconds=lease_s)
        self._format = records

    async def shares(self) -> Shares:
        """Return the shares of all owners, on all servers."""
        async with self.database.transaction() as connection:
            return await _shares(connection)

    async def add(self, record: JobRecord, size_bytes: int, check: Callable[[Shares], None]) -> Claim:
        """A place for a new job, whose files can be written then; `accept` makes it a job. It is given up if nothing is
        written for the time of a lease. `check` raises if there is no room, with whose shares it is called."""
        stored, version = self._format.dumped(record).decode(), VERSION
        async with self.database.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock($1)", ROOM_LOCK)  # or two would see the same room
            check(await _shares(connection))
            values = record.id, record.owner, version, stored, size_bytes, self._lease, record.priority.rank
            if await connection.fetchval(_ADD, *values) is None:
                raise Overloaded("Another server is storing the job with this Idempotency-Key.", retry_after_s=1)
        return Claim(record, 0)

    async def accept(self, claim: Claim) -> None:
        """Note that all files of the new job are stored: it waits from now on."""
        await self._write(
            "UPDATE asr_jobs SET state = 'queued', lease_until = NULL WHERE id = $1 AND claim = $2 AND state = $3",
            claim.id,
            claim.number,
            _ARRIVING,
        )

    async def write(self, claim: Claim, file: str, source: BinaryIO) -> int:
        """Store a file of the job in the place of an earlier one of this name. The bytes written."""
        await asyncio.to_thread(source.seek, 0)
        async with self._held(claim) as connection:
            await connection.execute("DELETE FROM asr_job_chunks WHERE job = $1 AND file = $2", claim.id, file)
        size_bytes = 0
        for number in count():
            if not (chunk := await asyncio.to_thread(source.read, _CHUNK_BYTES)):
                break
            async with self._held(claim) as connection:
                await connection.execute(
                    "INSERT INTO asr_job_chunks VALUES ($1, $2, $3, $4)", claim.id, file, number, chunk
                )
            size_bytes += len(chunk)
        return size_bytes

    async def read(self, identity: str, file: str) -> AsyncGenerator[bytes, None]:
        """A file of a job, in chunks; none where there is no such file."""
        for number in count():
            async with self.database.transaction() as connection:
                chunk = await connection.fetchval(
                    "SELECT content FROM asr_job_chunks WHERE job = $1 AND file = $2 AND number = $3",
                    identity,
                    file,
                    number,
                )
            if chunk is None:
                return
            yield chunk

    async def size_bytes(self, identity: str, file: str) -> int:
        """Return the bytes of a file of a job."""
        async with self.database.transaction() as connection:
            query = "SELECT coalesce(sum(length(content)), 0) FROM asr_job_chunks WHERE job = $1 AND file = $2"
            return int(await connection.fetchval(query, identity, file))

    async def keep_part(self, claim: Claim, number: int, key: str, samples: BinaryIO) -> None:
        """Store a part of speech after `number` others."""
        await self.cut_parts(claim, number)
        await self.write(claim, _part(number), samples)
        async with self._held(claim) as connection:
            await connection.execute("INSERT INTO asr_job_parts VALUES ($1, $2, $3)", claim.id, number, key)

    async def cut_parts(self, claim: Claim, number: int) -> None:
        """Remove all but the first parts of speech."""
        async with self._held(claim) as connection:
            query = "DELETE FROM asr_job_parts WHERE job = $1 AND number >= $2 RETURNING number"
            for row in await connection.fetch(query, claim.id, number):
                query = "DELETE FROM asr_job_chunks WHERE job = $1 AND file = $2"
                await connection.execute(query, claim.id, _part(row["number"]))

    async def parts(self, identity: str) -> list[str]:
        """The keys of the stored parts of speech."""
        async with self.database.transaction() as connection:
            query = "SELECT key FROM asr_job_parts WHERE job = $1 ORDER BY number"
            return [row["key"] for row in await connection.fetch(query, identity)]

    def part(self, identity: str, number: int) -> AsyncGenerator[bytes, None]:
        """The samples of a part."""
        return self.read(identity, _part(number))

    async def get(self, identity: str, owner: str) -> JobRecord | None:
        """The record of the owner's job, None if there is none."""
        async with self.database.transaction() as connection:
            query = "SELECT record FROM asr_jobs WHERE id = $1 AND owner = $2 AND state <> $3"
            stored = await connection.fetchval(query, identity, owner, _ARRIVING)
        return None if stored is None else self._record(stored, identity)

    async def records(self, identities: Collection[str]) -> dict[str, JobRecord]:
        """The records of these jobs, by their ids, without those that are not there or cannot be read."""
        async with self.database.transaction() as connection:
            rows = await connection.fetch("SELECT id, record FROM asr_jobs WHERE id = ANY($1)", list(identities))
        found = {}
        for row in rows:
            try:
                found[row["id"]] = self._record(row["record"], row["id"])
            except JobsUnavailable:
                logger.warning("job cannot be read", id=row["id"])
        return found

    async def counts(self) -> Counter[RecordState]:
        """Return the number of jobs in each state, on all servers."""
        async with self.database.transaction() as connection:
            rows = await connection.fetch("SELECT state, count(*) AS jobs FROM asr_jobs GROUP BY state")
        return Counter({RecordState(row["state"]): row["jobs"] for row in rows if row["state"] in set(RecordState)})

    async def claim(self, running: Collection[JobRecord], started_at: float, *, take_over: bool) -> Claim | None:
        """The job whose turn it is, which this server runs from now on; None if none waits for it.

        `running`: what it runs already, of which an owner has a limited number. `take_over`: also jobs of other servers
        that did not renew their claims.
        """
        under_way = Counter(record.owner for record in running)
        busy = [owner for owner, jobs in under_way.items() if jobs >= AT_ONCE_EACH]
        # Also a server that is late with renewing must not run a job twice.
        mine = [record.id for record in running]
        async with self.database.transaction() as connection:
            row = await connection.fetchrow(_NEXT, take_over, VERSION, busy, mine)
            if row is None:
                return None
            try:
                record = self._format.loaded(row["record"], row["id"])
            except DAMAGED as error:
                logger.warning("job is unreadable", id=row["id"], reason=type(error).__name__)
                await connection.execute("UPDATE asr_jobs SET state = $2 WHERE id = $1", row["id"], _UNREADABLE)
                return None
            record = replace(record.queued_again(), state=RecordState.RUNNING, started_at=started_at)
            claim = Claim(record, row["claim"] + 1, row["lost"] + (row["state"] == RecordState.RUNNING))
            stored = self._format.dumped(record).decode()
            await connection.execute(_CLAIM, record.id, stored, VERSION, claim.number, claim.lost, self._lease)
            await connection.execute(_TURN, record.owner)
        return claim

    async def renew(self, claim: Claim) -> None:
        """The claim is good for another lease, and the job's record is that of the claim."""
        stored = self._format.dumped(claim.record).decode()
        await self._write(_RENEW, claim.id, claim.number, stored, VERSION, self._lease)

    async def release(self, claim: Claim, *, lost: bool) -> None:
        """The job waits again. `lost`: the server failed on it."""
        stored = self._format.dumped(claim.record.queued_again()).decode()
        await self._write(_RELEASE, claim.id, claim.number, stored, VERSION, int(lost))

    async def end(self, claim: Claim, ended: JobRecord, ttl_s: float) -> None:
        """Store how the job ended, and remove all that is not its result or the transcript. It is removed after
        `ttl_s`."""
        stored, kept = (
            self._format.dumped(ended).decode(),
            (RESULT, TRANSCRIPT) if ended.result is not None else ("", ""),
        )
        async with self._held(claim) as connection:
            query = "DELETE FROM asr_job_chunks WHERE job = $1 AND file NOT IN ($2, $3)"
            await connection.execute(query, claim.id, *kept, timeout=REMOVE_S)
            await connection.execute("DELETE FROM asr_job_parts WHERE job = $1", claim.id)
            query = "SELECT coalesce(sum(length(content)), 0)::bigint FROM asr_job_chunks WHERE job = $1"
            size_bytes = _ROW_BYTES + await connection.fetchval(query, claim.id)
            values = (str(ended.state), stored, VERSION, size_bytes, timedelta(seconds=ttl_s), _until_due(ended))
            await connection.execute(_END, claim.id, claim.number, *values)

    async def cancel(self, identity: str, owner: str) -> Claim | None:
        """Take the owner's job, wherever it runs, to end it; None where it is over or there is none."""
        async with self.database.transaction() as connection:
            row = await connection.fetchrow(_CANCEL, identity, owner, self._lease)
        return None if row is None else Claim(self._record(row["record"], identity), row["claim"])

    async def claim_follow_up(self, busy: Collection[str]) -> Claim | None:
        """An ended job whose next request is due, of an owner who is not `busy`; None if there is none."""
        async with self.database.transaction() as connection:
            lease = timedelta(seconds=ATTEMPT_LEASE_S)
            row = await connection.fetchrow(_CLAIM_FOLLOW_UP, VERSION, list(busy), lease)
        return None if row is None else Claim(self._record(row["record"], row["id"]), row["claim"])

    async def keep_follow_up(self, claim: Claim, record: JobRecord) -> None:
        """Store the record of such a job."""
        stored = self._format.dumped(record).decode()
        await self._write(_KEEP_FOLLOW_UP, claim.id, claim.number, stored, VERSION, _until_due(record))

    async def remove(self, identity: str, owner: str) -> bool:
        """Remove the owner's job with its files. Returns True if there was one."""
        async with self.database.transaction() as connection:
            query = "DELETE FROM asr_jobs WHERE id = $1 AND owner = $2"
            return str(await connection.execute(query, identity, owner, timeout=REMOVE_S)) not in _NOTHING

    async def sweep(self) -> None:
        """Remove jobs whose time is over, and those that never arrived."""
        removed = ""
        while removed not in _NOTHING:
            async with self.database.transaction() as connection:
                removed = await connection.execute(_SWEEP, timeout=REMOVE_S)

    def _record(self, stored: str, identity: str) -> JobRecord:
        try:
            return self._format.loaded(stored, identity)
        except NewerVersion:
            raise JobsUnavailable("The job is of a newer version of the server.") from None
        except DAMAGED:
            raise JobsUnavailable("The job's record cannot be read.") from None

    async def _write(self, statement: str, *values: Any) -> None:
        async with self.database.transaction() as connection:
            if await connection.execute(statement, *values) in _NOTHING:
                raise ClaimLost

    @asynccontextmanager
    async def _held(self, claim: Claim) -> AsyncIterator[Any]:
        """A transaction in which nobody else can claim the job."""
        async with self.database.transaction() as connection:
            if await connection.execute(_HOLD, claim.id, claim.number, self._lease) in _NOTHING:
                raise ClaimLost
            yield connection


async def _shares(connection: Any) -> Shares:
    rows = await connection.fetch(_SHARES)
    unfinished: Counter[str] = Counter({row["owner"]: row["unfinished"] for row in rows})
    return Shares(unfinished, Counter({row["owner"]: row["bytes"] for row in rows}))


def _until_due(record: JobRecord) -> timedelta | None:
    """Return the time until the next request of an ended job, None for none: the server's clock may be another one than
    the database's."""
    return timedelta(seconds=max(0.0, record.follow_up_at - time.time())) if record.follow_up_at else None


def _part(number: int) -> str:
    return f"part-{number}"
