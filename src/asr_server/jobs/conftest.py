"""Servers of the tests of jobs, with scripted work, and their databases: SQLite, and in `make nightly` also PostgreSQL.
Tests set their clocks."""

import asyncio
import io
import math
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import pytest

from asr_server.core.errors import TranscriptionFailed
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.jobs.database import Postgres, Sqlite
from asr_server.jobs.record import RecordFormat, transcript_dumped
from asr_server.jobs.runner import JobOutcome, JobRunner, RecordingJobs
from asr_server.jobs.store import LEASE_S, JobLimits, JobStore
from asr_server.recordings.requests import Result, TranscriptionRequest
from E2Etest.postgres import postgres

MIB = 2**20
REQUEST = TranscriptionRequest()
RESULT = Result(b"", "text/plain", file_name="subtitles.srt", time_source="mixed")
SAID = Segment(0, 900, "Hi.", "English", (7,), float("-inf"), 0.1, words=(Word("Hi.", 0, 900, TimeSource.ALIGNED),))
TRANSCRIPT = Transcript("Hi.", "English", 1_000, (SAID,))


@dataclass(frozen=True, slots=True)
class TextRequest:
    task: Literal["text"] = "text"


RECORDS = RecordFormat((*RecordingJobs.request_types, TextRequest))


class Work:
    """Reports progress, follows `script` for each job (None: waits for `go`), and answers with the recording twice."""

    request_types = (*RecordingJobs.request_types, TextRequest)
    unexpected_error = TranscriptionFailed

    def __init__(self, *script):
        self.script, self.runs, self.go = list(script), [], asyncio.Event()

    async def process(self, run):
        recording = run.recording.read()
        self.runs.append((run.record.id, run.request, recording))
        run.report(done_s=3.0, duration_s=9.0)
        step = self.script.pop(0) if self.script else True
        if step is None:
            await self.go.wait()
        elif isinstance(step, Exception):
            raise step
        return JobOutcome(RESULT, io.BytesIO(2 * recording), 9.0, transcript_dumped(TRANSCRIPT))


@asynccontextmanager
async def serving(database, *kinds, sender=None, lease_s=LEASE_S, **limits):
    wanted = JobLimits(**{"ttl_s": 100, "timeout_s": 50, "max_jobs": 9, **limits})
    store = JobStore(database, wanted, RECORDS, lease_s)
    jobs = JobRunner(kinds, store, sender)
    jobs.store = store
    await jobs.start()
    try:
        yield jobs
    finally:
        await jobs.close()


async def ended(jobs, identity, owner=""):
    async with asyncio.timeout(20):
        async for record in jobs.watch(identity, owner):
            last = record
    return last


async def fetched(jobs, identity, owner=""):
    result, size_bytes, found = await jobs.result(identity, owner)
    pieces = [piece async for piece in found]
    assert size_bytes == sum(map(len, pieces))
    assert all(len(piece) <= MIB for piece in pieces)
    return replace(result, content=b"".join(pieces))


class FastSqlite(Sqlite):
    """A database that does not wait for the disk: these tests simulate no power failure."""

    def _open(self):
        connection = super()._open()
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def pass_time(self, seconds):
        self._ahead_s += seconds


class SharedSqlite(FastSqlite):
    is_shared = True

    async def close(self):
        pass


class SqliteServer:
    """A database without jobs, whose clock tests set."""

    def __init__(self, directory, capacity=100 * MIB):
        self._made, self.capacity = SharedSqlite(directory, 100.0), capacity
        self._made.free_bytes = self._free_bytes

    async def _free_bytes(self, size_bytes, reserved_bytes):
        return self.capacity - size_bytes

    def connect(self):
        """Return the database as one more server connects to it."""
        return self._made

    async def pass_time(self, seconds):
        self._made.pass_time(seconds)

    async def query(self, statement):
        async with self._made.transaction() as run:
            return [tuple(row) for row in await run(statement)]

    async def close(self):
        await Sqlite.close(self._made)


_CLOCK = """
CREATE TABLE test_clock (s double precision);
INSERT INTO test_clock VALUES (0);
CREATE OR REPLACE FUNCTION asr_now() RETURNS double precision LANGUAGE sql STABLE
AS 'SELECT extract(epoch FROM now())::double precision + (SELECT s FROM test_clock)';
"""


class SteadyPostgres(Postgres):
    """A database whose last outage was long ago."""

    steady_s = math.inf


class PostgresServer:
    """A PostgreSQL database without jobs, whose clock tests set."""

    def __init__(self, server, directory, capacity=100 * MIB, made=SteadyPostgres):
        self._server, self._directory, self.capacity, self._made = server, directory, capacity, made
        server.query("DROP SCHEMA public CASCADE")
        server.query("CREATE SCHEMA public")
        self._has_clock = False

    def connect(self):
        return self._made(self._server.url, self._directory, self.capacity)

    async def pass_time(self, seconds):
        if not self._has_clock:
            await asyncio.to_thread(self._server.query, _CLOCK)
            self._has_clock = True
        await asyncio.to_thread(self._server.query, f"UPDATE test_clock SET s = s + {seconds}")

    async def query(self, statement):
        made = self.connect()
        async with made.transaction() as run:
            rows = [tuple(row) for row in await run(statement)]
        await made.close()
        return rows

    async def close(self):
        pass


@pytest.fixture(scope="session")
def postgres_server():
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(postgres()))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
async def server(request, tmp_path, postgres_server):
    state = tmp_path / "state"
    made = SqliteServer(state) if request.param == "sqlite" else PostgresServer(postgres_server(), state)
    yield made
    await made.close()
