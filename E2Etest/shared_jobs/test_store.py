"""Jobs in a real PostgreSQL database: the tests of the store and of the runners, and what SQLite cannot show."""

import asyncio
import io

import pytest

from asr_server.core.errors import JobsUnavailable
from asr_server.features.shared_jobs.database import Database
from asr_server.features.shared_jobs.database_store import DatabaseStore
from asr_server.features.shared_jobs.database_store_test import (
    RECORDS,
    keeping,
    store,
    test_a_claim_that_is_renewed_is_nobody_elses,
    test_a_failed_job_keeps_no_file,
    test_a_priority_orders_the_jobs_of_one_owner_alone,
    test_a_server_does_not_take_over_what_it_runs,
    test_an_end_leaves_the_result_alone,
    test_files_are_stored_in_chunks_and_replaced_as_a_whole,
    test_jobs_of_a_server_that_is_gone_are_not_under_way,
    test_one_server_at_a_time_sends_the_request_of_an_ended_job,
    test_only_its_owner_sees_and_removes_a_job,
    test_owners_take_turns_over_all_servers,
    test_parts_of_speech_are_cut_with_their_samples,
    test_what_arrives_is_no_job_and_has_its_place,
    test_what_is_given_back_waits_with_all_its_losses,
    test_what_is_over_its_time_goes,
    test_what_is_refused_leaves_nothing,
    test_who_cancels_a_job_takes_it_from_its_server,
    test_who_lost_the_claim_writes_nothing,
)
from asr_server.features.shared_jobs.shared_store_test import (
    LEASE_S,
    REQUEST,
    Work,
    ended,
    fetched,
    kill,
    run,
    short_times,
    test_a_failure_says_why_and_how_far_the_job_came,
    test_a_job_is_its_owners_alone,
    test_a_key_does_not_hold_up_another,
    test_a_record_that_cannot_be_read_holds_nobody_up,
    test_a_recording_that_breaks_off_leaves_no_place,
    test_a_server_runs_three_jobs_at_once,
    test_a_server_that_stops_gives_its_jobs_back,
    test_a_server_whose_engine_failed_begins_no_more_jobs,
    test_a_stopped_server_that_goes_on_ends_its_run,
    test_any_server_takes_and_answers,
    test_jobs_are_removed_in_time,
    test_limits_hold_over_all_servers,
    test_progress_reaches_watchers_elsewhere,
    test_removing_stops_the_run_here_at_once,
    test_removing_stops_the_run_wherever_it_is,
    test_speech_goes_on_with_its_finished_parts,
    test_speech_of_another_voice_takes_the_place_of_what_was_stored,
    test_what_no_server_survives_fails,
    test_who_watches_does_not_hold_up_the_end,
    until,
)
from asr_server.jobs.record import RecordState
from E2Etest.postgres import postgres

__all__ = [
    "keeping",
    "run",
    "short_times",
    "store",
    "test_a_claim_that_is_renewed_is_nobody_elses",
    "test_a_failed_job_keeps_no_file",
    "test_a_failure_says_why_and_how_far_the_job_came",
    "test_a_job_is_its_owners_alone",
    "test_a_key_does_not_hold_up_another",
    "test_a_priority_orders_the_jobs_of_one_owner_alone",
    "test_a_record_that_cannot_be_read_holds_nobody_up",
    "test_a_recording_that_breaks_off_leaves_no_place",
    "test_a_server_does_not_take_over_what_it_runs",
    "test_a_server_runs_three_jobs_at_once",
    "test_a_server_that_stops_gives_its_jobs_back",
    "test_a_server_whose_engine_failed_begins_no_more_jobs",
    "test_a_stopped_server_that_goes_on_ends_its_run",
    "test_an_end_leaves_the_result_alone",
    "test_any_server_takes_and_answers",
    "test_files_are_stored_in_chunks_and_replaced_as_a_whole",
    "test_jobs_are_removed_in_time",
    "test_jobs_of_a_server_that_is_gone_are_not_under_way",
    "test_limits_hold_over_all_servers",
    "test_one_server_at_a_time_sends_the_request_of_an_ended_job",
    "test_only_its_owner_sees_and_removes_a_job",
    "test_owners_take_turns_over_all_servers",
    "test_parts_of_speech_are_cut_with_their_samples",
    "test_progress_reaches_watchers_elsewhere",
    "test_removing_stops_the_run_here_at_once",
    "test_removing_stops_the_run_wherever_it_is",
    "test_speech_goes_on_with_its_finished_parts",
    "test_speech_of_another_voice_takes_the_place_of_what_was_stored",
    "test_what_arrives_is_no_job_and_has_its_place",
    "test_what_is_given_back_waits_with_all_its_losses",
    "test_what_is_over_its_time_goes",
    "test_what_is_refused_leaves_nothing",
    "test_what_no_server_survives_fails",
    "test_who_cancels_a_job_takes_it_from_its_server",
    "test_who_lost_the_claim_writes_nothing",
    "test_who_watches_does_not_hold_up_the_end",
]
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def postgres_server():
    with postgres() as started:
        yield started


@pytest.fixture
def server(postgres_server):
    """With no jobs in it."""
    postgres_server.query("DROP SCHEMA public CASCADE")
    postgres_server.query("CREATE SCHEMA public")
    return postgres_server


@pytest.fixture
def connect(server):
    """As that of the double."""
    return lambda: Database(server.url)


@pytest.fixture
def pass_time():
    """PostgreSQL has the time of the machine."""
    return asyncio.sleep


async def test_a_job_of_a_server_that_died_is_taken_over(run):
    """When its lease is over, and only then."""
    lost, work = Work(None), Work()
    async with run(lost) as dead:
        taken = await dead.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: lost.runs)
        async with run(work) as jobs:
            await asyncio.sleep(2 * LEASE_S)
            assert not work.runs
            await kill(dead)
            assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED
            assert len(work.runs) == 1


async def test_an_outage_costs_nothing_but_time(run, server):
    """While the database is away every call says so. What runs goes on, and ends once, at the same server."""
    first, second = Work(None), Work()
    async with run(first) as one, run(second) as other:
        other._draining = True
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: first.runs)
        other._draining = False
        server.stop()
        try:
            for refused in (one.get(taken.id), one.add(REQUEST, io.BytesIO(b"x")), other.check_room()):
                with pytest.raises(JobsUnavailable, match="does not answer"):
                    await refused
            first.go.set()
            await asyncio.sleep(LEASE_S)
        finally:
            server.start()
        assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
        assert (await fetched(other, taken.id))[1] == b"audioaudio"
    assert (len(first.runs), len(second.runs)) == (1, 0)


async def test_tables_of_another_version_are_left_alone(run, server):
    """A server that does not know them says so, and works when they are known again."""
    async with run(Work()) as jobs:
        await jobs.check_room()
        server.query("UPDATE asr_jobs_schema SET version = 99")
        async with run(Work()) as older:
            with pytest.raises(JobsUnavailable, match="version 99"):
                await older.check_room()
            server.query("UPDATE asr_jobs_schema SET version = 1")
            await older.check_room()


async def test_servers_that_start_together_make_one_schema(connect):
    """Under a lock: none of them fails."""
    stores = [DatabaseStore(connect(), LEASE_S, RECORDS) for _ in range(8)]
    assert [answer.unfinished for answer in await asyncio.gather(*(each.shares() for each in stores))] == [{}] * 8
    for each in stores:
        await each.database.close()
