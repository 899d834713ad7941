"""A double of PostgreSQL for the tests of shared jobs: the statements of the server on SQLite, and a clock for tests.

PostgreSQL itself runs the same tests at night (E2Etest/shared_jobs), which also have what SQLite cannot show: several
connections at a time, their locks, and outages.
"""

import asyncio
import json
import math
import re
import sqlite3
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count

import pytest

from asr_server.features.shared_jobs import database

# What SQLite writes in another way, or does not need.
_DIALECT = [
    (r"\$(\d+)", r"?\1"),
    (r"::\w+(\[\])?", ""),
    (r"<> ALL\((\?\d+)\)", r"NOT IN (SELECT value FROM json_each(\1))"),
    (r"= ANY\((\?\d+)\)", r"IN (SELECT value FROM json_each(\1))"),
    (r"FOR UPDATE( OF \w+)? SKIP LOCKED", ""),
    (r"id text PRIMARY KEY", "id text UNIQUE NOT NULL"),
    (r"place bigint GENERATED ALWAYS AS IDENTITY", "place integer PRIMARY KEY AUTOINCREMENT"),
    (r"REFERENCES asr_jobs", "REFERENCES asr_jobs (id)"),
    (r"INCLUDE \(\w+\)", ""),
    (r"ALTER TABLE [^;]*;|CREATE SEQUENCE [^;]*;", ""),
]
# Between two transactions.
_TICK_S = 0.001


class SqliteServer:
    """One database. `now_s`: its clock, which hardly moves by itself."""

    def __init__(self):
        self.now_s = 1_000_000.0
        self.turn = asyncio.Lock()  # one transaction at a time
        turns = count(1)
        self._file = sqlite3.connect(":memory:", isolation_level=None)
        self._file.row_factory = sqlite3.Row
        self._file.execute("PRAGMA foreign_keys = ON")
        self._file.create_function("now", 0, lambda: self.now_s)
        self._file.create_function("nextval", 1, lambda name: next(turns))
        self._file.create_function("pg_advisory_xact_lock", 1, lambda number: None)
        self._file.executescript(_in_dialect(database._SCHEMA))

    def run(self, statement, *values):
        """The cursor of a statement in PostgreSQL's dialect."""
        return self._file.execute(_in_dialect(statement), tuple(map(_value, values)))

    def query(self, statement):
        """The rows of the answer, as `psql` prints them."""
        return ["|".join(map(str, row)) for row in self.run(statement)]

    def close(self):
        self._file.close()


class SqliteDatabase:
    """One server's connection: a `Database`."""

    def __init__(self, server):
        self._server = server
        self.steady_s = math.inf

    @asynccontextmanager
    async def transaction(self):
        async with self._server.turn:
            self._server.now_s += _TICK_S
            self._server.run("BEGIN")
            try:
                yield _Connection(self._server)
            except BaseException:
                self._server.run("ROLLBACK")
                raise
            self._server.run("COMMIT")

    async def close(self):
        pass


class _Connection:
    """The methods of asyncpg's connection that the server calls."""

    def __init__(self, server):
        self._server = server

    async def execute(self, statement, *values, **options):
        done = self._server.run(statement, *values)
        return f"{statement.split()[0]} {done.rowcount}"

    async def fetch(self, statement, *values):
        return self._server.run(statement, *values).fetchall()

    async def fetchrow(self, statement, *values):
        return self._server.run(statement, *values).fetchone()

    async def fetchval(self, statement, *values):
        row = self._server.run(statement, *values).fetchone()
        return None if row is None else row[0]


def _in_dialect(statement):
    for pattern, replacement in _DIALECT:
        statement = re.sub(pattern, replacement, statement)
    return statement


def _value(value):
    if isinstance(value, timedelta):
        return value.total_seconds()
    return json.dumps(value) if isinstance(value, list) else value


@pytest.fixture
def server():
    """A database with no jobs in it."""
    made = SqliteServer()
    yield made
    made.close()


@pytest.fixture
def connect(server):
    """A function that makes the `Database` of one more server."""
    return lambda: SqliteDatabase(server)


@pytest.fixture
def pass_time(server):
    """A function after which so many seconds have passed for leases and removals."""

    async def pass_s(seconds):
        server.now_s += seconds

    return pass_s
