"""The jobs' runner with a scripted processor, which injects faults. E2Etest/contract/test_jobs.py has the real one."""

import asyncio
import io
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import EngineFailed, InvalidInput, JobsUnavailable, Overloaded, ShuttingDown, SpeechFailed
from asr_server.core.transcript import Segment, Transcript
from asr_server.jobs import database, runner
from asr_server.jobs.conftest import RECORDS, REQUEST, FastSqlite, TextRequest, ended, fetched, serving, until
from asr_server.jobs.database import Sqlite
from asr_server.jobs.record import JobRecord, RecordState, new_id
from asr_server.jobs.runner import JobOutcome, RecordingJobs
from asr_server.jobs.store import JobLimits, JobStore
from asr_server.recordings.pipeline import RunOptions, SegmentDone, Started
from asr_server.recordings.requests import Result
from asr_server.schedule.job import Priority

RESULT = Result(b"words", "text/plain", file_name="subtitles.srt", time_source="mixed")
TRANSCRIPT = Transcript("words", "English", 9_000, ())
SEGMENT = Segment(0, 3_000, "words", "English", (), -0.1, 0.1)


class Scripted:
    """Does what `script` says for each call: returns a result, raises, or waits for `go`. A `RequestProcessor`."""

    def __init__(self, *script):
        self.script, self.calls, self.go = list(script), [], asyncio.Event()

    async def process(self, source, request, options, emit):
        self.calls.append((request, options))
        await emit(Started(9.0))
        await emit(SegmentDone(SEGMENT))
        step = self.script.pop(0) if self.script else RESULT
        if step is None:
            await self.go.wait()
            step = RESULT
        if isinstance(step, Exception):
            raise step
        return step, TRANSCRIPT


class TextJobs:
    """Does what the script says, for texts."""

    request_types = (TextRequest,)
    unexpected_error = SpeechFailed

    def __init__(self, scripted):
        self.scripted = scripted

    async def process(self, run):
        async def ignore(event):
            pass

        result, _ = await self.scripted.process(None, run.request, None, ignore)
        return JobOutcome(result, b"speech", 9.0)


def running(directory, processor, **limits):
    database = FastSqlite(directory, limits.get("ttl_s", 100.0))
    return serving(database, RecordingJobs(processor), TextJobs(processor), **{"max_jobs": 3, **limits})


async def begun(jobs, identity):
    async with aclosing(jobs.watch(identity)) as changes:
        async for record in changes:
            if record.done_s > 0:
                return


async def test_a_job_runs_as_bulk_work_and_keeps_its_result(tmp_path):
    """It gives way to everybody, has its own time limit, and its result is there afterwards."""
    processor, began_s = Scripted(), time.time()
    async with running(tmp_path, processor) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert taken.state is RecordState.QUEUED
        done = await ended(jobs, taken.id)
        assert (done.state, done.done_s, done.duration_s) == (RecordState.SUCCEEDED, 9.0, 9.0)
        assert began_s <= done.created_at <= done.started_at <= done.ended_at <= time.time()
        assert await fetched(jobs, taken.id) == RESULT
    assert processor.calls == [(REQUEST, RunOptions(Priority.BULK, timeout_s=50, keeps_words=True))]


async def test_a_key_has_one_job(tmp_path):
    """A request that is sent again gets the job that was accepted, also where no more are, and after a restart; another
    recording or other options under its key are refused. Owners have keys of their own."""
    processor = Scripted(None)
    async with running(tmp_path, processor, max_jobs=1) as jobs:
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
    async with running(tmp_path, processor) as jobs:
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
    async with running(tmp_path, Scripted(fault)) as jobs:
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


async def test_a_full_server_makes_a_job_wait_not_fail(tmp_path):
    """New requests are refused when the server is full; a job was accepted already."""
    processor = Scripted(Overloaded("full"), Overloaded("full"))
    async with running(tmp_path, processor) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED
    assert len(processor.calls) == 3


@pytest.mark.parametrize("end", [EngineFailed("an illegal memory access was encountered"), ShuttingDown("stopping")])
async def test_jobs_outlive_an_engine_that_ends(tmp_path, end):
    """The process ends; what ran and what waited is done by the next one."""
    lost = Scripted(*[end] * 5)
    async with running(tmp_path, lost, max_jobs=5) as jobs:
        taken = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(3)]
        await until(lambda: lost.calls)
        await asyncio.sleep(0.05)
        assert not any([(await jobs.get(one.id)).state.over for one in taken])
    async with running(tmp_path, Scripted(), max_jobs=5) as jobs:
        assert {(await ended(jobs, one.id)).state for one in taken} == {RecordState.SUCCEEDED}


async def test_what_a_killed_server_had_begun_waits_again(tmp_path, monkeypatch):
    """The record says that it waits, without progress. The next server knows how many servers were killed during the
    job."""

    async def killed(store, claim, *, lost):
        pass

    with monkeypatch.context() as patched:
        patched.setattr(JobStore, "release", killed)
        async with running(tmp_path, Scripted(None, None)) as jobs:
            taken = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(3)]
            await begun(jobs, taken[1].id)
    async with running(tmp_path, Scripted(None, None)) as jobs:
        await begun(jobs, taken[1].id)
        waits = await jobs.get(taken[2].id)
        assert (waits.state, waits.started_at, waits.done_s) == (RecordState.QUEUED, 0.0, 0.0)
        async with jobs.store.database.transaction() as run:
            assert [row[0] for row in await run("SELECT lost FROM asr_jobs WHERE state = 'running'")] == [1, 1]


async def test_a_runner_ends_although_a_job_cannot_be_given_back(tmp_path, monkeypatch):
    """The next one finds it as one that ran."""

    async def fails(store, claim, *, lost):
        raise OSError(28, "no space left on device")

    async with running(tmp_path, Scripted(None, None)) as jobs:
        taken = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(2)]
        for one in taken:
            await begun(jobs, one.id)
        monkeypatch.setattr(JobStore, "release", fails)
    monkeypatch.undo()
    async with running(tmp_path, Scripted()) as jobs:
        assert {(await ended(jobs, one.id)).state for one in taken} == {RecordState.SUCCEEDED}


async def test_who_watches_does_not_hold_up_the_end(tmp_path):
    """A server that stops says so to the watchers of what is not over; what is over is still told."""
    async with running(tmp_path, Scripted(RESULT, None)) as jobs:
        done = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, done.id)
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        watcher = asyncio.create_task(ended(jobs, taken.id))
        await begun(jobs, taken.id)
        await asyncio.sleep(0.01)  # it waits for another change
        jobs.drain()
        with pytest.raises(ShuttingDown):
            await watcher
        with pytest.raises(ShuttingDown):
            await ended(jobs, taken.id)
        assert (await ended(jobs, done.id)).state is RecordState.SUCCEEDED


@pytest.mark.parametrize("removed", [False, True])
async def test_a_job_that_ends_while_a_watcher_arrives_is_over_for_it(tmp_path, monkeypatch, removed):
    """The watcher has read an older record, and no further change will come."""
    processor = Scripted(None)
    async with running(tmp_path, processor) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await begun(jobs, taken.id)
        read = asyncio.Event()
        get = JobStore.get

        async def slow(store, identity, owner):
            found = await get(store, identity, owner)
            if asyncio.current_task() is watcher:
                read.set()
                await asyncio.sleep(0.3)
            return found

        monkeypatch.setattr(JobStore, "get", slow)

        async def watched():
            return [record.state async for record in jobs.watch(taken.id)]

        watcher = asyncio.create_task(watched())
        await read.wait()
        if removed:
            await jobs.remove(taken.id)
        else:
            processor.go.set()
        async with asyncio.timeout(10):
            assert (await watcher)[-1:] == ([] if removed else [RecordState.SUCCEEDED])


async def test_what_cannot_be_removed_stays_a_job(tmp_path, monkeypatch):
    """A directory that has become read-only: the caller is told so, and not that the job is gone."""
    processor = Scripted(RESULT, None)
    async with running(tmp_path, processor) as jobs:
        done = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, done.id)
        runs = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        while len(processor.calls) < 2:  # noqa: ASYNC110 - a call sets no event
            await asyncio.sleep(0.001)
        with monkeypatch.context() as read_only:
            read_only.setattr(Sqlite, "drop_files", _refusing)
            for job in (done, runs):
                with pytest.raises(JobsUnavailable):
                    await jobs.remove(job.id)
        assert await fetched(jobs, done.id) == RESULT
        assert (await ended(jobs, runs.id)).state is RecordState.SUCCEEDED
        await jobs.remove(done.id)


async def test_a_result_that_cannot_be_read_is_no_fault_of_the_job(tmp_path, monkeypatch):
    """The disk fails for a while: that is said, and the job stays."""
    async with running(tmp_path, Scripted()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, taken.id)

        async def failing(self, identity, name):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as failed:
            failed.setattr(Sqlite, "size_bytes", failing)
            with pytest.raises(JobsUnavailable, match="Input/output"):
                await jobs.result(taken.id)
        assert await fetched(jobs, taken.id) == RESULT


async def _refusing(self, identity, keep=()):
    raise JobsUnavailable("The job cannot be removed (Read-only file system).")


async def test_without_a_store_every_call_says_why_until_there_is_one(tmp_path, monkeypatch):
    """A server without a usable directory runs, refuses jobs, and tries again: here until another server has ended."""
    monkeypatch.setattr(runner, "_AWAY_S", 0.01)
    other = JobStore(FastSqlite(tmp_path, 100.0), JobLimits(100, 50, 3), RECORDS)
    await other.database.prepare()
    async with running(tmp_path, Scripted()) as jobs:
        with pytest.raises(JobsUnavailable, match="Another server"):
            await jobs.add(REQUEST, io.BytesIO(b"audio"))
        left = JobRecord(new_id(), REQUEST, 1.0)
        await other.add(left, io.BytesIO(b"audio"), 5)
        await other.database.close()
        await until(lambda: any(jobs.counts.values()))
        assert (await ended(jobs, left.id)).state is RecordState.SUCCEEDED


async def test_speech_has_its_place_on_the_disk_from_the_beginning(tmp_path, monkeypatch):
    """What it will take counts while it is made, also after a restart; at its end, what it takes."""
    spoken, mib = TextRequest(), 2**20
    # What the speech under way will take is not free any more, whoever asks.
    monkeypatch.setattr(database.shutil, "disk_usage", lambda path: SimpleNamespace(free=20 * mib))
    async with running(tmp_path, Scripted(None), several_keys=True) as jobs:
        await jobs.add(spoken, io.BytesIO(b"[]"), "ann", characters=5, expected_bytes=8 * mib)
        with pytest.raises(Overloaded, match="and with this one would take 12"):
            await jobs.add(spoken, io.BytesIO(b"[]"), "ann", characters=5, expected_bytes=4 * mib)
        await jobs.add(spoken, io.BytesIO(b"[]"), "bob", characters=5, expected_bytes=4 * mib)
        with pytest.raises(JobsUnavailable, match="no room"):
            await jobs.add(spoken, io.BytesIO(b"[]"), characters=5, expected_bytes=9 * mib)
        await jobs.add(spoken, io.BytesIO(b"[]"), characters=5, expected_bytes=7 * mib)
    processor = Scripted(None, None)
    async with running(tmp_path, processor, several_keys=True) as jobs:
        with pytest.raises(Overloaded):
            await jobs.add(spoken, io.BytesIO(b"[]"), "ann", characters=5, expected_bytes=4 * mib)
        processor.go.set()
        await until(lambda: jobs.counts[RecordState.SUCCEEDED] == 3)
        await jobs.add(spoken, io.BytesIO(b"[]"), "ann", characters=5, expected_bytes=4 * mib)
        with pytest.raises(JobsUnavailable, match="no room"):
            await jobs.add(spoken, io.BytesIO(b"[]"), characters=5, expected_bytes=40 * mib)


async def test_few_texts_arrive_at_a_time(tmp_path):
    """Each is in the memory until it is stored."""
    async with running(tmp_path, Scripted(), max_jobs=9) as jobs:
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


async def test_a_finished_job_goes_after_its_time(tmp_path, monkeypatch):
    """The job leaves memory and disk, also if its owner has removed an earlier one."""
    monkeypatch.setattr(runner, "_SWEEP_S", 0.01)
    async with running(tmp_path, Scripted(), ttl_s=0.3) as jobs:
        first, second = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(2)]
        for job in (first, second):
            await ended(jobs, job.id)
        await jobs.remove(first.id)
        await until(lambda: not list((tmp_path / "jobs").iterdir()))
        with raises("job_not_found"):
            await jobs.get(second.id)


async def test_a_server_runs_three_jobs_at_once(tmp_path):
    """At most two jobs belong to one owner, so the third slot is for another one."""
    processor = Scripted(*[None] * 9)
    async with running(tmp_path, processor, max_jobs=9) as jobs:
        for owner in ("ann", "ann", "ann", "ben", "cem"):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), owner)
        await until(lambda: len(processor.calls) == 3)
        await asyncio.sleep(0.1)
        assert sorted(options.owner for _, options in processor.calls) == ["ann", "ann", "ben"]
