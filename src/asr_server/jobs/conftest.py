"""The databases of the tests of jobs: SQLite, and in `make nightly` also PostgreSQL. Tests set their clocks."""

import asyncio
import math
from contextlib import ExitStack

import pytest

from asr_server.jobs.database import Postgres, Sqlite
from E2Etest.postgres import postgres

MIB = 2**20


class FastSqlite(Sqlite):
    """A database that does not wait for the disk: these tests simulate no power failure."""

    def _open(self):
        connection = super()._open()
        connection.execute("PRAGMA synchronous = OFF")
        return connection


class SharedSqlite(FastSqlite):
    """One database for several servers of a test."""

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
        self._made._ahead_s += seconds

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
        started = []

        def start():
            if not started:
                started.append(stack.enter_context(postgres()))
            return started[0]

        yield start


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
async def server(request, tmp_path, postgres_server):
    """Return a database without jobs."""
    state = tmp_path / "state"
    made = SqliteServer(state) if request.param == "sqlite" else PostgresServer(postgres_server(), state)
    yield made
    await made.close()
