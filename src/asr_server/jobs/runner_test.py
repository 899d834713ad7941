"""The runner of jobs with scripted work, which injects faults. E2Etest/contract/test_jobs.py has the real one."""

import asyncio
import io
from contextlib import AsyncExitStack
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from asr_server.core.conftest import raises, until
from asr_server.core.errors import InvalidInput, JobsUnavailable, Overloaded, ShuttingDown
from asr_server.jobs import database, runner
from asr_server.jobs.conftest import MIB, RECORDS, REQUEST, FastSqlite, TextRequest, Work, ended, fetched, serving
from asr_server.jobs.database import Sqlite
from asr_server.jobs.record import JobRecord, RecordState, new_id
from asr_server.jobs.store import JobLimits, JobStore


def running(directory, work, **limits):
    return serving(FastSqlite(directory, limits.get("ttl_s", 100.0)), work, **{"max_jobs": 3, **limits})


async def test_a_key_has_one_job(tmp_path):
    """A request that is sent again gets the accepted job, also after a restart; others under its key are refused."""
    work = Work(None)
    async with running(tmp_path, work, max_jobs=1) as jobs:
        first = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", key="k")
        await jobs.check_room("ann", "k")
        with pytest.raises(Overloaded):
            await jobs.check_room("ann", "l")
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", key="k")).id == first.id
        for request, audio in ((REQUEST, b"other"), (replace(REQUEST, language="German"), b"audio")):
            with raises("idempotency_key_reused"):
                await jobs.add(request, io.BytesIO(audio), "ann", key="k")
        with pytest.raises(Overloaded):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), "bob", key="k")
    async with running(tmp_path, work) as jobs:
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", key="k")).id == first.id
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), "bob", key="k")).id != first.id


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (InvalidInput("no audio", code="invalid_audio"), "invalid_audio"),
        (OSError(28, "No space left on device"), "jobs_unavailable"),  # a disk that fails is not the engine's fault
        (ZeroDivisionError(), "transcription_failed"),
    ],
)
async def test_a_failure_is_kept_with_its_code_and_hurts_nobody(tmp_path, fault, code):
    """The job says why; it has no result; the next one runs."""
    async with running(tmp_path, Work(fault)) as jobs:
        first = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        failed = await ended(jobs, first.id)
        assert (failed.state, failed.error.code) == (RecordState.FAILED, code)
        assert failed.done_s == 3.0  # how far it came
        with raises("job_not_finished"):
            await jobs.result(first.id)
        # The caller's recording is not kept for longer than it is needed.
        assert not list((tmp_path / "jobs").iterdir())
        second = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert (await ended(jobs, second.id)).state is RecordState.SUCCEEDED


async def test_what_a_killed_server_had_begun_waits_again(tmp_path):
    """The next server knows how many were killed during the job; here they end without a disk to give it back on."""
    work = Work(*[None] * 4)
    async with running(tmp_path, work) as jobs:
        jobs.store.release = AsyncMock(side_effect=OSError(28, "no space left on device"))
        taken = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(3)]
        await until(lambda: len(work.runs) == 2)
    async with running(tmp_path, work) as jobs:
        await until(lambda: len(work.runs) == 4)
        waits = await jobs.get(taken[2].id)
        assert (waits.state, waits.started_at, waits.done_s) == (RecordState.QUEUED, 0.0, 0.0)
        async with jobs.store.database.transaction() as run:
            assert [row[0] for row in await run("SELECT lost FROM asr_jobs WHERE state = 'running'")] == [1, 1]


async def test_who_watches_does_not_hold_up_the_end(tmp_path):
    """A server that stops says so at once to the watchers of a job that is not over."""
    work = Work(None)
    async with running(tmp_path, work) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        watcher = asyncio.create_task(ended(jobs, taken.id))
        await until(lambda: work.runs)
        await asyncio.sleep(0.01)  # it waits for another change
        jobs.drain()
        with pytest.raises(ShuttingDown):
            await watcher


async def test_a_job_that_ends_while_a_watcher_arrives_is_over_for_it(tmp_path):
    """The watcher has read an older record, and no further change will come."""
    work = Work(None)
    async with running(tmp_path, work) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: work.runs)
        get = jobs.store.get

        async def slow(identity, owner):
            found = await get(identity, owner)
            work.go.set()
            await asyncio.sleep(0.3)
            return found

        jobs.store.get = slow
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED


async def test_a_disk_that_fails_for_a_while_costs_no_job(tmp_path, monkeypatch):
    """Callers are told that a result cannot be read and that a job cannot be removed, and not that there is none."""
    work, refused = Work(True, None), JobsUnavailable("The job cannot be removed (Read-only file system).")
    async with running(tmp_path, work) as jobs:
        done = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, done.id)
        runs = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: len(work.runs) == 2)
        with monkeypatch.context() as failing:
            failing.setattr(Sqlite, "drop_files", AsyncMock(side_effect=refused))
            failing.setattr(Sqlite, "size_bytes", AsyncMock(side_effect=OSError(5, "Input/output error")))
            for job in (done, runs):
                with pytest.raises(JobsUnavailable):
                    await jobs.remove(job.id)
            with pytest.raises(JobsUnavailable, match="Input/output"):
                await jobs.result(done.id)
        assert (await fetched(jobs, done.id)).content == b"audioaudio"
        assert (await ended(jobs, runs.id)).state is RecordState.SUCCEEDED
        await jobs.remove(done.id)


async def test_without_a_store_every_call_says_why_until_there_is_one(tmp_path, monkeypatch):
    """A server without a usable directory runs, refuses jobs, and tries again: here until another server has ended."""
    monkeypatch.setattr(runner, "_LOOK_S", 0.01)
    other = JobStore(FastSqlite(tmp_path, 100.0), JobLimits(100, 50, 3), RECORDS)
    await other.database.prepare()
    async with running(tmp_path, Work()) as jobs:
        with pytest.raises(JobsUnavailable, match="Another server"):
            await jobs.add(REQUEST, io.BytesIO(b"audio"))
        left = JobRecord(new_id(), REQUEST, 1.0)
        await other.add(left, io.BytesIO(b"audio"), 5)
        await other.database.close()
        await until(lambda: any(jobs.counts.values()))
        assert (await ended(jobs, left.id)).state is RecordState.SUCCEEDED


async def test_speech_has_its_place_on_the_disk_from_the_beginning(tmp_path, monkeypatch):
    """What it will take counts while it is made, also after a restart; at its end, what it takes."""
    # What the speech under way will take is not free any more, whoever asks.
    monkeypatch.setattr(database.shutil, "disk_usage", lambda path: SimpleNamespace(free=20 * MIB))

    def add(jobs, owner, size_mib):
        return jobs.add(TextRequest(), io.BytesIO(b"[]"), owner, characters=5, expected_bytes=size_mib * MIB)

    async with running(tmp_path, Work(None), several_keys=True) as jobs:
        await add(jobs, "ann", 8)
        with pytest.raises(Overloaded, match="and with this one would take 12"):
            await add(jobs, "ann", 4)
        with pytest.raises(JobsUnavailable, match="no room"):
            await add(jobs, "", 13)
    work = Work(None)
    async with running(tmp_path, work, several_keys=True) as jobs:
        with pytest.raises(Overloaded):
            await add(jobs, "ann", 4)
        work.go.set()
        await until(lambda: jobs.counts[RecordState.SUCCEEDED] == 1)
        await add(jobs, "ann", 4)


async def test_few_texts_arrive_at_a_time(tmp_path):
    """Each is in the memory until it is stored."""
    async with running(tmp_path, Work(), max_jobs=9) as jobs:
        async with AsyncExitStack() as arriving:
            for caller in ("ann", "ann", "bob"):
                await arriving.enter_async_context(jobs.room_for_text(caller=caller))
            with pytest.raises(Overloaded):  # one caller does not take all
                await arriving.enter_async_context(jobs.room_for_text(caller="ann"))
            await arriving.enter_async_context(jobs.room_for_text())
            with pytest.raises(Overloaded):
                await arriving.enter_async_context(jobs.room_for_text())
        async with jobs.room_for_text():
            pass
