"""The connection to the database of jobs: PostgreSQL, with its schema. The only user of the database's driver.

`database_store.py` has the statements about jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from loguru import logger

from asr_server.core.errors import JobsUnavailable

if TYPE_CHECKING:
    import asyncpg

SCHEMA_VERSION = 1
# Any number that other programs with the same database are unlikely to take for a lock.
SCHEMA_LOCK, ROOM_LOCK = 7_204_118_001, 7_204_118_002
# Of one server. None is kept for a caller who reads or writes slowly.
_CONNECTIONS = 4
_CONNECT_S, _STATEMENT_S, _CLOSE_S = 5.0, 10.0, 5.0
# Of a statement that may remove some GiB.
REMOVE_S = 60.0

# Contents are not compressed: they are audio, or short. A job is `arriving` until all of its input is there.
# `claim` counts how often a job was taken: a server with an older number may not write. `lost`: how often one ended,
# or was not heard of for too long, while it ran the job. `turn`: which of the owners was last.
_SCHEMA = """
CREATE TABLE asr_jobs (
    id text PRIMARY KEY,
    place bigint GENERATED ALWAYS AS IDENTITY,
    owner text NOT NULL,
    state text NOT NULL,
    version integer NOT NULL,
    record text NOT NULL,
    size_bytes bigint NOT NULL,
    claim bigint NOT NULL DEFAULT 0,
    lost integer NOT NULL DEFAULT 0,
    lease_until timestamptz,
    remove_at timestamptz,
    priority smallint NOT NULL DEFAULT 1
);
CREATE INDEX asr_jobs_by_owner ON asr_jobs (owner, state) INCLUDE (size_bytes);
CREATE INDEX asr_jobs_to_do ON asr_jobs (place) WHERE state IN ('queued', 'running');
CREATE INDEX asr_jobs_to_remove ON asr_jobs (remove_at) WHERE remove_at IS NOT NULL;
CREATE TABLE asr_job_chunks (
    job text NOT NULL REFERENCES asr_jobs ON DELETE CASCADE,
    file text NOT NULL,
    number integer NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (job, file, number)
);
ALTER TABLE asr_job_chunks ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE TABLE asr_job_parts (
    job text NOT NULL REFERENCES asr_jobs ON DELETE CASCADE,
    number integer NOT NULL,
    key text NOT NULL,
    PRIMARY KEY (job, number)
);
CREATE TABLE asr_job_turns (owner text PRIMARY KEY, turn bigint NOT NULL);
CREATE SEQUENCE asr_job_turn;
CREATE TABLE asr_jobs_schema (version integer NOT NULL);
INSERT INTO asr_jobs_schema VALUES (1);
"""

# Databases of earlier versions get these too; servers of earlier versions do not mind them.
_ADDED = """
ALTER TABLE asr_jobs ADD COLUMN IF NOT EXISTS priority smallint NOT NULL DEFAULT 1;
CREATE INDEX asr_jobs_to_follow_up ON asr_jobs (lease_until) WHERE state IN ('succeeded', 'failed', 'cancelled');
"""

_WORK_WAITS = """
SELECT EXISTS (
    SELECT FROM asr_jobs
    WHERE state = 'queued' OR state IN ('running', 'succeeded', 'failed', 'cancelled') AND lease_until < now()
)
"""


class Database:
    """A few connections, made when they are needed and again after they broke. Its schema is made at the first use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._has_schema = False
        self._steady_since_s = time.monotonic()
        self._reason = ""

    @property
    def steady_s(self) -> float:
        """The time for which the database has answered everything."""
        return time.monotonic() - self._steady_since_s

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection in a transaction, which is committed at the end of the block. Raises `JobsUnavailable`."""
        import asyncpg

        try:
            pool = self._pool or await self._opened()
            async with pool.acquire(timeout=_CONNECT_S) as connection, connection.transaction():
                yield connection
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            # The message of an error may have the names of users and hosts, so only its kind is told.
            raise self._away(f"the database does not answer ({type(error).__name__})") from error
        if self._reason:
            logger.info("jobs are on")
            self._reason = ""

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._pool.close()
            self._pool.terminate()

    async def _opened(self) -> asyncpg.Pool:
        import asyncpg

        async with self._opening:
            if self._pool is None:
                made = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=_CONNECTIONS,
                    timeout=_CONNECT_S,
                    command_timeout=_STATEMENT_S,
                    server_settings={"application_name": "asr-server"},
                )
                try:
                    async with made.acquire() as connection, connection.transaction():
                        await self._make_schema(connection)
                except BaseException:
                    made.terminate()
                    raise
                self._pool, self._steady_since_s = made, time.monotonic()
        return self._pool

    async def _make_schema(self, connection: Any) -> None:
        """Make the schema if it is missing. If several servers start together, one of them makes it."""
        await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
        if await connection.fetchval("SELECT to_regclass('asr_jobs_schema')") is None:
            await connection.execute(_SCHEMA)
        elif (version := await connection.fetchval("SELECT version FROM asr_jobs_schema")) != SCHEMA_VERSION:
            raise self._away(f"its tables have version {version}, and this server knows {SCHEMA_VERSION}")
        if await connection.fetchval("SELECT to_regclass('asr_jobs_to_follow_up')") is None:
            await connection.execute(_ADDED)

    def _away(self, reason: str) -> JobsUnavailable:
        if reason != self._reason:
            logger.warning("jobs are off", reason=reason)
        self._reason, self._steady_since_s = reason, time.monotonic()
        return JobsUnavailable(f"JOBS_DATABASE_URL: {reason}.")


async def work_waits(url: str) -> bool:
    """Return True if a job waits for a server, and False if the database does not answer."""
    import asyncpg

    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        connection = await asyncpg.connect(url, timeout=_CONNECT_S, command_timeout=_CONNECT_S)
        try:
            return bool(await connection.fetchval(_WORK_WAITS))
        finally:
            await connection.close(timeout=_CLOSE_S)
    return False
