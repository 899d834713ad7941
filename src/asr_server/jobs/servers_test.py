"""The runners of several servers with one database, in one process, with scripted work."""

import asyncio
import io
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from asr_server.core.conftest import raises, until
from asr_server.core.errors import EngineFailed, JobsUnavailable, Overloaded, ShuttingDown
from asr_server.jobs import runner
from asr_server.jobs.conftest import REQUEST, RESULT, TRANSCRIPT, Work, ended, fetched, serving
from asr_server.jobs.record import RecordState
from asr_server.recordings.requests import TranscriptionRequest

LEASE_S = 5.0


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    """Shorten all waits to a tenth."""
    for name, value in (("_RENEW_S", 0.05), ("_LOOK_S", 0.1), ("_RETRY_S", 0.1), ("_COUNT_S", 0.2)):
        monkeypatch.setattr(runner, name, value)


@pytest.fixture
def run(server):
    """Return a function that runs one server: `async with run(work) as jobs`."""
    return lambda work, **limits: serving(server.connect(), work, lease_s=LEASE_S, **limits)


async def test_any_server_takes_and_answers(run, server):
    """One server accepts a job with its clips, and another one does it. Both answer for its state and its result."""
    recording = bytes(range(256)) * 10_000
    request = TranscriptionRequest(
        speakers=True, known_speaker_names=("Ann", "Ben"), known_speaker_references=(b"RIFF\xff", b"RIFF\x00")
    )
    first, second = Work(None), Work()
    async with run(first) as one, run(second) as other:
        blocked = await one.add(REQUEST, io.BytesIO(b"x"))
        await until(lambda: first.runs or second.runs)
        one.drain()
        taken = await one.add(request, io.BytesIO(recording))
        assert taken.request.known_speaker_references == (b"", b"")
        assert await server.query("SELECT max(size_bytes) FROM asr_jobs") == [(len(recording) + 10,)]
        done = await ended(other, taken.id)
        assert (done.state, done.done_s, done.duration_s) == (RecordState.SUCCEEDED, 9.0, 9.0)
        assert (taken.id, request, recording) in second.runs
        for jobs in (one, other):
            assert await jobs.get(taken.id) == done
            assert await fetched(jobs, taken.id) == replace(RESULT, content=2 * recording)
            async with jobs.transcript(taken.id, "", "") as (_, transcript):
                assert transcript == TRANSCRIPT
        first.go.set()
        await ended(other, blocked.id)


async def test_progress_reaches_watchers_elsewhere(run):
    """A watcher at a server that does not run the job sees its progress and its end."""
    work = Work(None)
    async with run(work) as runs:
        taken, seen = await runs.add(REQUEST, io.BytesIO(b"audio")), []
        await until(lambda: work.runs)
        async with run(Work()) as other, asyncio.timeout(20):
            async for record in other.watch(taken.id):
                seen.append((record.state, record.done_s))
                if record.done_s:
                    work.go.set()
        assert seen[-2:] == [(RecordState.RUNNING, 3.0), (RecordState.SUCCEEDED, 9.0)]


@pytest.mark.parametrize("step", [None, ShuttingDown("stopping")])
async def test_a_server_that_stops_gives_its_jobs_back(run, server, step):
    """Another server starts them before the lease has ended, and they count no loss, even if the engine stopped."""
    stopping = Work(step)
    async with run(stopping) as one:
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: stopping.runs)
    assert await server.query("SELECT state, lost FROM asr_jobs") == [("queued", 0)]
    async with run(Work()) as jobs:
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED


async def test_what_no_server_survives_fails(run, monkeypatch):
    """After several losses the job fails, so that it does not kill one server after another."""
    monkeypatch.setattr(runner, "_MOST_LOST", 2)
    work, error = Work(), EngineFailed("an illegal memory access was encountered")
    for number in (1, 2, 3):
        work.script = [error]
        async with run(work) as jobs:
            taken = await jobs.add(REQUEST, io.BytesIO(b"audio"), key="k")
            await until(lambda number=number: len(work.runs) == number)
    async with run(work) as jobs:
        failed = await ended(jobs, taken.id)
        assert (failed.state, failed.error.code) == (RecordState.FAILED, "transcription_failed")
        with raises("job_not_finished"):
            await jobs.result(taken.id)
    assert len(work.runs) == 3


async def test_limits_hold_over_all_servers(run):
    """A key may have as many jobs as it leaves for others. Removing a job frees its place, which is given once."""
    limits = {"max_jobs": 4, "several_keys": True}
    async with run(Work(*[None] * 9), **limits) as one, run(Work(*[None] * 9), **limits) as other:
        first = await one.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await other.add(REQUEST, io.BytesIO(b"audio"), "ann")
        for jobs in (one, other):
            with pytest.raises(Overloaded, match="2 jobs"):
                await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await one.remove(first.id, "ann")
        await other.add(REQUEST, io.BytesIO(b"audio"), "ben")
        coming = [jobs.add(REQUEST, io.BytesIO(b"x"), name) for jobs in (one, other) for name in ("eve", "fay")]
        taken = await asyncio.gather(*coming, return_exceptions=True)
        assert sum(isinstance(answer, Overloaded) for answer in taken) == 2


async def test_removing_stops_the_run_wherever_it_is(run, server):
    work = Work(None)
    async with run(work) as runs:
        taken = await runs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: work.runs)
        watcher = asyncio.create_task(ended(runs, taken.id))
        await asyncio.sleep(0.1)
        async with run(Work()) as other:
            await other.remove(taken.id)
        assert not (await watcher).state.over
        await until(lambda: runs.pending == 0)
        assert await server.query("SELECT count(*) FROM asr_jobs, asr_job_chunks") == [(0,)]


async def test_a_stopped_server_that_goes_on_ends_its_run(run, server):
    """The server fails to renew its claim and cancels its run. The result is the other server's."""
    frozen, work = Work(None), Work()
    async with run(frozen) as one:
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: frozen.runs)
        one.store.renew = AsyncMock(side_effect=JobsUnavailable("stopped"))
        await server.pass_time(LEASE_S + 1)
        async with run(work) as other:
            assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
            await until(lambda: one.pending == 1)  # it counts now and then what waits
            del one.store.renew
            await until(lambda: one.pending == 0)
            assert (await fetched(one, taken.id)).content == b"audioaudio"


async def test_what_runs_for_longer_than_a_lease_stays_where_it_runs(run, server):
    """The server renews the claim, also while the job reports nothing. Another server takes it over when that ends."""
    runs, work = Work(None), Work()
    async with run(runs) as dead:
        taken = await dead.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: runs.runs)
        async with run(work) as other:
            lease = "SELECT lease_until FROM asr_jobs"
            for _ in range(4):
                ((before_s,),) = await server.query(lease)
                await server.pass_time(LEASE_S / 2)
                while (await server.query(lease))[0][0] < before_s + LEASE_S / 2:  # noqa: ASYNC110 - it sets no event
                    await asyncio.sleep(0.02)
            assert not work.runs
            dead.store.release = AsyncMock()  # by SIGKILL no claim is released
            await dead.close()
            await server.pass_time(LEASE_S + 1)
            assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
            assert len(work.runs) == 1


async def test_a_job_runs_again_when_its_engine_is_back(run, monkeypatch):
    """An engine process may refuse it for long. A job that ends each engine that runs it fails in the end."""
    monkeypatch.setattr(runner, "_ENGINE_AWAY_S", 0.01)
    for refused_s, runs, state in ((5.0, 9, RecordState.SUCCEEDED), (0.0, 6, RecordState.FAILED)):
        monkeypatch.setattr(runner, "_REFUSED_S", refused_s)
        work = Work(*[EngineFailed("The engine does not answer.")] * 8)
        async with run(work) as jobs:
            taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
            assert ((await ended(jobs, taken.id)).state, len(work.runs)) == (state, runs)


async def test_a_server_whose_engine_failed_begins_no_more_jobs(run, server):
    """The job counts a loss when it is released. Waiting jobs are for other servers."""
    work = Work(EngineFailed("an illegal memory access was encountered"))
    async with run(work) as jobs:
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: work.runs)
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await asyncio.sleep(0.3)
        assert len(work.runs) == 1
    assert await server.query("SELECT state, lost FROM asr_jobs ORDER BY place") == [("queued", 1), ("queued", 0)]
