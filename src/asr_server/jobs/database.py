"""The databases of jobs: SQLite with files next to it, or PostgreSQL for everything. Both take the same statements.

Only this module uses the two drivers. A driver is imported when a job needs it.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from loguru import logger

from asr_server.core.errors import JobsUnavailable
from asr_server.recordings.requests import MAX_KNOWN_SPEAKERS

if TYPE_CHECKING:
    import sqlite3

    import asyncpg

# Runs a statement with its values and returns the rows of the answer.
Run = Callable[..., Awaitable[list[Any]]]
Held = Callable[[], AbstractAsyncContextManager[Run]]

RECORDING, RESULT, TRANSCRIPT = "recording", "result", "transcript"
CLIPS = tuple(f"clip-{number}" for number in range(MAX_KNOWN_SPEAKERS))
_CHUNK_BYTES = 1024 * 1024

SCHEMA_VERSION = 2
# A job is `arriving` until all of its input is there, and `removing` while its files are removed. `claim` counts how
# often a job was taken: a server with an older number may not write. `lost`: how often a server ended while it ran the
# job. `reserved_bytes` are not on the disk yet. `lease_until` of an ended job is when its next follow-up is due. Times
# are those of `asr_now()`, in seconds.
_TABLES = f"""
CREATE TABLE asr_jobs (
    id text PRIMARY KEY,
    place bigint NOT NULL,
    owner text NOT NULL,
    state text NOT NULL,
    version integer NOT NULL,
    record text NOT NULL,
    priority integer NOT NULL,
    size_bytes bigint NOT NULL,
    reserved_bytes bigint NOT NULL,
    started_at double precision NOT NULL DEFAULT 0,
    claim bigint NOT NULL DEFAULT 0,
    lost integer NOT NULL DEFAULT 0,
    server text NOT NULL DEFAULT '',
    lease_until double precision,
    remove_at double precision
);
CREATE INDEX asr_jobs_by_owner ON asr_jobs (owner, state, size_bytes);
CREATE INDEX asr_jobs_to_do ON asr_jobs (place) WHERE state IN ('queued', 'running');
CREATE INDEX asr_jobs_to_remove ON asr_jobs (remove_at) WHERE remove_at IS NOT NULL;
CREATE INDEX asr_jobs_to_follow_up ON asr_jobs (lease_until) WHERE state IN ('succeeded', 'failed', 'cancelled');
CREATE TABLE asr_job_chunks (
    job text NOT NULL REFERENCES asr_jobs ON DELETE CASCADE,
    file text NOT NULL,
    number integer NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (job, file, number)
);
CREATE TABLE asr_job_turns (owner text PRIMARY KEY, turn bigint NOT NULL);
CREATE TABLE asr_jobs_schema (version integer NOT NULL);
INSERT INTO asr_jobs_schema VALUES ({SCHEMA_VERSION});
"""


class Database:
    """Base class of both databases. Logs once why jobs are off, and once that they are on again."""

    is_shared: ClassVar[bool]  # other servers have the same jobs
    locked: ClassVar[str] = ""  # ends a query that selects a row: other servers skip that row

    def __init__(self, directory: Path) -> None:
        self.directory = directory  # holds the files of running jobs
        self.reason = ""  # why jobs are off; "" if they are on

    def _away(self, reason: str) -> JobsUnavailable:
        if reason != self.reason:
            logger.warning("jobs are off", reason=reason)
        self.reason = reason
        return JobsUnavailable(reason)

    def _answered(self) -> None:
        if self.reason:
            logger.info("jobs are on")
            self.reason = ""

    def _make_directory(self) -> None:
        """Create the directory. Raises `OSError`, also if the user has no home directory."""
        try:
            self.directory = self.directory.expanduser()
        except RuntimeError:
            raise OSError(0, "this user has no home directory") from None
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)


# Jobs whose time passed while no server ran are kept a little longer: the clock may have been wrong.
_GRACE_S = 3_600.0
# Recover what an earlier server left. Its clock may have been different.
_RECOVER = (
    "DELETE FROM asr_jobs WHERE state IN ('arriving', 'removing')",
    "UPDATE asr_jobs SET state = 'queued', lost = lost + 1, lease_until = NULL, server = '' WHERE state = 'running'",
    "UPDATE asr_jobs SET remove_at = CASE WHEN remove_at < asr_now() THEN asr_now() + min($1, $2)"
    " ELSE min(remove_at, asr_now() + $2) END WHERE remove_at IS NOT NULL",
    "UPDATE asr_jobs SET lease_until = CASE WHEN server = '' THEN min(lease_until, asr_now() + $1) ELSE asr_now() END,"
    " server = '' WHERE lease_until IS NOT NULL",
)
_TO_CLEAN = "SELECT id, state FROM asr_jobs WHERE state NOT IN ('queued', 'running')"


class Sqlite(Database):
    """The jobs of one server, in a file in `STATE_DIR`, which is locked. Statements run in turn on one thread."""

    is_shared: ClassVar[bool] = False
    steady_s: ClassVar[float] = math.inf

    def __init__(self, directory: Path, ttl_s: float) -> None:
        super().__init__(directory)
        self._ttl_s = ttl_s
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "jobs")
        self._connection: sqlite3.Connection | None = None
        self._lock: BinaryIO | None = None
        # Added to the monotonic clock, this gives Unix time that nobody can set while the server runs.
        self._ahead_s = time.time() - time.monotonic()

    async def prepare(self) -> bool:
        """Lock the directory. Return True if it may hold jobs. Raises `JobsUnavailable`."""
        try:
            await self._in_thread(self._lock_directory)
        except OSError as error:
            raise self._away(_cause(error)) from None
        return self._path.exists()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Run]:
        """A transaction, which is committed at the end of the block. Raises `JobsUnavailable`."""
        import sqlite3

        async with self._turn:
            try:
                if self._connection is None:
                    self._connection = await self._in_thread(self._open)
                try:
                    await self._run("BEGIN IMMEDIATE")
                    yield self._run
                    await self._run("COMMIT")
                except BaseException:
                    # Even if this is cancelled again, the thread rolls back before it runs anything else.
                    await asyncio.shield(self._in_thread(self._connection.rollback))
                    raise
            except sqlite3.Error as error:
                raise self._away(f"{self._path.name} in STATE_DIR cannot be used ({error}).") from error
            self._answered()

    async def close(self) -> None:
        """Close the database, and unlock the directory for the next server."""
        if self._connection is not None:
            await self._in_thread(self._connection.close)
        if self._lock is not None:
            self._lock.close()
        self._connection = None
        self._thread.shutdown(wait=False)

    async def write(self, held: Held, identity: str, name: str, source: BinaryIO) -> int:
        """Store a file of a job. Returns its size. Raises `OSError`."""
        part = self._file(identity, f"{name}.part")
        try:
            size_bytes = await asyncio.to_thread(_write, part, source)
            async with held():
                await asyncio.to_thread(part.replace, self._file(identity, name))
        finally:
            part.unlink(missing_ok=True)
        return size_bytes

    async def open(self, identity: str, name: str) -> BinaryIO:
        return await asyncio.to_thread(open, self._file(identity, name), "rb")

    async def size_bytes(self, identity: str, name: str) -> int:
        return (await asyncio.to_thread(self._file(identity, name).stat)).st_size

    async def pieces(self, identity: str, name: str) -> AsyncGenerator[bytes, None]:
        """Yield a file of a job in pieces. Raises `OSError`."""
        with await self.open(identity, name) as file:
            while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                yield piece

    async def drop_files(self, identity: str, keep: Collection[str] = ()) -> None:
        """Remove the files of a job except those in `keep`. Raises `JobsUnavailable`."""
        try:
            await asyncio.to_thread(self._drop, identity, keep)
        except OSError as error:
            raise JobsUnavailable(f"The job's files cannot be removed ({error.strerror}).") from error

    async def free_bytes(self, size_bytes: int, reserved_bytes: int) -> int:
        """Return the free space, if all jobs take `size_bytes`, of which `reserved_bytes` are not written yet."""
        return (await asyncio.to_thread(shutil.disk_usage, self.directory)).free - reserved_bytes

    @property
    def _path(self) -> Path:
        return self.directory / "jobs.sqlite3"

    def _file(self, identity: str, name: str) -> Path:
        return self.directory / "jobs" / f"{identity}.{name}"

    def _drop(self, identity: str, keep: Collection[str]) -> None:
        for name in {RECORDING, RESULT, TRANSCRIPT, *CLIPS}.difference(keep):
            for end in ("", ".part"):
                self._file(identity, name + end).unlink(missing_ok=True)

    async def _in_thread(self, work: Callable[..., Any], *values: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *values)

    async def _run(self, statement: str, *values: Any) -> list[Any]:
        return await self._in_thread(self._execute, statement, *values)  # type: ignore[no-any-return]

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        assert self._connection is not None
        named = {str(number): value for number, value in enumerate(values, 1)}
        return self._connection.execute(statement, named).fetchall()

    def _lock_directory(self) -> None:
        if self._lock is None:
            self._make_directory()
            (self.directory / "jobs").mkdir(exist_ok=True, mode=0o700)
            lock = open(self.directory / "lock", "ab", opener=_private)  # noqa: SIM115 - closed by `close`
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                raise
            self._lock = lock

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        try:
            self._lock_directory()
            os.close(_private(str(self._path), os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise self._away(_cause(error)) from None
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.create_function("asr_now", 0, lambda: self._ahead_s + time.monotonic())
        try:
            connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'asr_jobs_schema'").fetchone():
                connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
            _check_version(connection.execute("SELECT version FROM asr_jobs_schema").fetchone()[0], self._away)
            for row in connection.execute(_TO_CLEAN).fetchall():
                with suppress(OSError):  # the files are removed with the job
                    self._drop(row["id"], () if row["state"] in ("arriving", "removing") else (RESULT, TRANSCRIPT))
            for statement in _RECOVER:
                connection.execute(statement, {"1": _GRACE_S, "2": self._ttl_s})
        except BaseException:
            connection.close()
            raise
        return connection


def _check_version(version: int, away: Callable[[str], JobsUnavailable]) -> None:
    if version != SCHEMA_VERSION:
        raise away(f"The tables of jobs have version {version}, and this server knows {SCHEMA_VERSION}.")


def _cause(error: OSError) -> str:
    if isinstance(error, BlockingIOError):
        return "Another server uses the same STATE_DIR."
    return f"STATE_DIR cannot be used ({error.strerror})."


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _write(path: Path, source: BinaryIO) -> int:
    source.seek(0)
    with open(path, "wb", opener=_private) as sink:
        shutil.copyfileobj(source, sink, _CHUNK_BYTES)
        sink.flush()
        os.fsync(sink.fileno())
        return sink.tell()


# An arbitrary number that other programs are unlikely to use as a lock in the same database.
SCHEMA_LOCK = 7_204_118_001
_POSTGRES_TABLES = """
CREATE FUNCTION asr_now() RETURNS double precision LANGUAGE sql STABLE
AS 'SELECT extract(epoch FROM now())::double precision';
ALTER TABLE asr_job_chunks ALTER COLUMN content SET STORAGE EXTERNAL;
"""  # contents are not compressed: they are audio, or short
# The most connections of one server.
_CONNECTIONS = 4
_CONNECT_S, _STATEMENT_S, _CLOSE_S = 5.0, 10.0, 5.0
_SESSION = {
    "application_name": "asr-server",
    # In milliseconds. A server suspended in a transaction would otherwise lock its rows until it resumes.
    "idle_in_transaction_session_timeout": "10000",
}
# The timeout of a statement that may remove some GiB.
_DELETE_S = 60.0


class Postgres(Database):
    """The jobs of several servers. Connections are few, made on demand, and made again after they break."""

    is_shared: ClassVar[bool] = True
    locked: ClassVar[str] = "FOR UPDATE OF job SKIP LOCKED"

    def __init__(self, url: str, directory: Path, max_bytes: int) -> None:
        super().__init__(directory)
        self._url, self._max_bytes = url, max_bytes
        self._pool: asyncpg.Pool | None = None
        self._steady_since_s = time.monotonic()

    @property
    def steady_s(self) -> float:
        return time.monotonic() - self._steady_since_s

    async def prepare(self) -> bool:
        with suppress(OSError):  # running jobs will report it
            await asyncio.to_thread(self._make_directory)
        return True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Run]:
        """A transaction, which is committed at the end of the block. Raises `JobsUnavailable`."""
        import asyncpg

        try:
            if self._pool is None:  # the pool starts without connections, so this does not wait
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=_CONNECTIONS,
                    timeout=_CONNECT_S,
                    command_timeout=_STATEMENT_S,
                    server_settings=_SESSION,
                    init=self._make_tables,
                )
            async with self._pool.acquire(timeout=_STATEMENT_S) as connection, connection.transaction():
                yield lambda statement, *values: connection.fetch(
                    statement, *values, timeout=_DELETE_S if statement.startswith("DELETE") else None
                )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            self._steady_since_s = time.monotonic()
            # An error's message may contain the names of users and hosts, so only its type is logged.
            raise self._away(f"JOBS_DATABASE_URL: the database does not answer ({type(error).__name__}).") from error
        self._answered()

    async def close(self) -> None:
        if self._pool is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._pool.close()
            self._pool.terminate()

    async def write(self, held: Held, identity: str, name: str, source: BinaryIO) -> int:
        """Store a file of a job in place of an earlier one. Returns its size."""
        await asyncio.to_thread(source.seek, 0)
        async with held() as run:
            await run("DELETE FROM asr_job_chunks WHERE job = $1 AND file = $2", identity, name)
        number = 0
        while chunk := await asyncio.to_thread(source.read, _CHUNK_BYTES):
            async with held() as run:
                await run("INSERT INTO asr_job_chunks VALUES ($1, $2, $3, $4)", identity, name, number, chunk)
            number += 1
        return await asyncio.to_thread(source.tell)

    async def open(self, identity: str, name: str) -> BinaryIO:
        """Return a copy of a file of a job. It has no name, so it is gone when the server ends. Raises `OSError`."""
        copy: Any = await asyncio.to_thread(partial(tempfile.TemporaryFile, dir=self.directory))
        try:
            async for piece in self.pieces(identity, name):
                await asyncio.to_thread(copy.write, piece)
            copy.seek(0)
        except BaseException:
            copy.close()
            raise
        return copy  # type: ignore[no-any-return]

    async def size_bytes(self, identity: str, name: str) -> int:
        """Return the size of a file of a job, or 0 if there is no such file."""
        query = "SELECT coalesce(sum(length(content)), 0) AS bytes FROM asr_job_chunks WHERE job = $1 AND file = $2"
        async with self.transaction() as run:
            return int((await run(query, identity, name))[0]["bytes"])

    async def pieces(self, identity: str, name: str) -> AsyncGenerator[bytes, None]:
        """Yield a file of a job in pieces. No connection is held while the reader handles a piece."""
        query = "SELECT content FROM asr_job_chunks WHERE job = $1 AND file = $2 AND number = $3"
        for number in count():
            async with self.transaction() as run:
                rows = await run(query, identity, name, number)
            if not rows:
                return
            yield rows[0]["content"]

    async def drop_files(self, identity: str, keep: Collection[str] = ()) -> None:
        """Do nothing: chunks are removed by statements."""

    async def free_bytes(self, size_bytes: int, reserved_bytes: int) -> int:
        return self._max_bytes - size_bytes

    async def _make_tables(self, connection: asyncpg.Connection) -> None:
        """Create the tables if a new connection finds none. If several servers start together, one creates them."""
        # `to_regclass` does not work here: it would repeat its first answer until the end of the transaction.
        there = "SELECT 1 FROM pg_tables WHERE schemaname = ANY (current_schemas(false)) AND tablename = $1"
        if not await connection.fetchval(there, "asr_jobs_schema"):
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", SCHEMA_LOCK)
                if not await connection.fetchval(there, "asr_jobs_schema"):
                    await connection.execute(_TABLES + _POSTGRES_TABLES)
        _check_version(await connection.fetchval("SELECT version FROM asr_jobs_schema"), self._away)
