"""Jobs in PostgreSQL during outages, and with servers that start together. SQLite has neither."""

import asyncio
import io
from contextlib import AsyncExitStack, ExitStack

import pytest
from hypothesis import settings

from asr_server.core.conftest import until
from asr_server.core.errors import JobsUnavailable
from asr_server.jobs.conftest import RECORDS, REQUEST, PostgresServer, Work, ended, fetched, postgres_server
from asr_server.jobs.database import Postgres
from asr_server.jobs.record import RecordState
from asr_server.jobs.servers_test import LEASE_S, run, short_times
from asr_server.jobs.store import JobStore
from asr_server.jobs.store_machine_test import PHASES, StoreMachine
from asr_server.jobs.store_test import limits
from E2Etest.postgres import postgres

__all__ = ["postgres_server", "run", "short_times"]
pytestmark = pytest.mark.nightly


@pytest.fixture
def process(postgres_server):
    return postgres_server()


@pytest.fixture
def server(process, tmp_path):
    """Return a database without jobs."""
    return PostgresServer(process, tmp_path / "state", made=Postgres)


async def test_an_outage_costs_nothing_but_time(run, process):
    """While the database is away every call says so. What runs goes on, and ends once, at the same server."""
    first, second = Work(None), Work()
    async with AsyncExitStack() as servers:
        one = await servers.enter_async_context(run(first))
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: first.runs)
        other = await servers.enter_async_context(run(second))
        await other.check_room()
        process.stop()
        try:
            for refused in (one.get(taken.id), one.add(REQUEST, io.BytesIO(b"x")), other.check_room()):
                with pytest.raises(JobsUnavailable, match="does not answer"):
                    await refused
            first.go.set()
            await asyncio.sleep(LEASE_S)
        finally:
            process.start()
        assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
        assert (await fetched(other, taken.id)).content == b"audioaudio"
    assert (len(first.runs), len(second.runs)) == (1, 0)


async def test_a_server_that_stands_still_in_a_transaction_keeps_no_job(run, server):
    """The database ends the transaction after 10 s, and another server takes the job."""
    frozen, work = Work(None), Work()

    async def stopped(claim):
        raise JobsUnavailable("stopped")

    async with run(frozen) as one:
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: frozen.runs)
        one.store.renew = stopped
        await server.pass_time(LEASE_S + 1)
        transaction = one.store.database.transaction()
        statement = await transaction.__aenter__()
        await statement("SELECT id FROM asr_jobs FOR UPDATE")
        async with run(work) as other:
            assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
        with pytest.raises(JobsUnavailable):
            await transaction.__aexit__(None, None, None)


async def test_tables_of_another_version_are_left_alone(run, process):
    """A server that does not know them says so, and works when they are known again."""
    async with run(Work()) as jobs:
        await jobs.check_room()
        (version,) = process.query("SELECT version FROM asr_jobs_schema")
        process.query("UPDATE asr_jobs_schema SET version = 99")
        async with run(Work()) as older:
            with pytest.raises(JobsUnavailable, match="version 99"):
                await older.check_room()
            process.query(f"UPDATE asr_jobs_schema SET version = {version}")
            await older.check_room()


async def test_servers_that_start_together_make_one_schema(server):
    """Under a lock: none of them fails."""
    stores = [JobStore(server.connect(), limits(), RECORDS) for _ in range(8)]
    assert await asyncio.gather(*(each.unfinished() for each in stores)) == [{}] * 8
    for each in stores:
        await each.database.close()


class PostgresMachine(StoreMachine):
    """Two servers with one PostgreSQL database."""

    server_process = None

    def _database(self, directory):
        return PostgresServer(type(self).server_process, directory)


@pytest.mark.timeout(600)
class TestStoreInPostgres(PostgresMachine.TestCase):
    """The rules that `make test` checks with SQLite."""

    settings = settings(max_examples=50, stateful_step_count=30, deadline=None, derandomize=True, phases=PHASES)

    @classmethod
    def setUpClass(cls):
        cls.stack = ExitStack()
        PostgresMachine.server_process = cls.stack.enter_context(postgres())

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()
