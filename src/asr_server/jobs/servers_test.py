"""The runners of several servers with one database, in one process, with scripted work."""

from __future__ import annotations

import asyncio
import io
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import (
    EngineFailed,
    JobsUnavailable,
    Overloaded,
    SpeechFailed,
    TranscriptionFailed,
)
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.jobs import runner
from asr_server.jobs.record import RecordFormat, RecordState, transcript_dumped
from asr_server.jobs.runner import JobOutcome, JobRunner, RecordingJobs
from asr_server.jobs.store import JobLimits, JobStore
from asr_server.recordings.requests import Result, TranscriptionRequest

SAID = Segment(0, 900, "Hi.", "English", (7,), float("-inf"), 0.1, words=(Word("Hi.", 0, 900, TimeSource.ALIGNED),))
TRANSCRIPT = Transcript("Hi.", "English", 1_000, (SAID,))
REQUEST, MIB = TranscriptionRequest(), 2**20
RESULT = Result(b"", "text/plain", file_name="subtitles.srt", time_source="mixed")
LEASE_S = 5.0


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A request about a text."""

    task: Literal["text"] = "text"


RECORDS = RecordFormat((*RecordingJobs.request_types, TextRequest))


class Work:
    """Reports progress, follows `script` for each job (None: waits for `go`), and answers with the recording twice."""

    request_types = RecordingJobs.request_types
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
        return JobOutcome(RESULT, 2 * recording, 9.0, transcript_dumped(TRANSCRIPT))


class Speaking:
    """Writes samples into a file, and waits for `go` in the middle. The result is the file."""

    request_types = (TextRequest,)
    unexpected_error = SpeechFailed

    def __init__(self):
        self.runs, self.go = 0, asyncio.Event()

    async def process(self, run):
        spoken, file = run.new_file(), run.new_file()
        self.runs += 1
        spoken.write(bytes(1_000_000))
        await self.go.wait()
        spoken.write(bytes([1]) * 1_000_000)
        spoken.seek(0)
        file.write(b"????" + spoken.read())
        file.seek(0)
        file.write(b"head")
        return JobOutcome(Result(b"", "audio/wav"), file, 1.0)


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    """Shorten all waits to a tenth."""
    for name, value in (("_RENEW_S", 0.05), ("_LOOK_S", 0.1), ("_RETRY_S", 0.1), ("_COUNT_S", 0.2)):
        monkeypatch.setattr(runner, name, value)


@pytest.fixture
def run(server):
    """Return a function that runs one server: `async with run(work) as jobs`."""

    @asynccontextmanager
    async def running(work, speaking=None, **limits):
        wanted = JobLimits(**{"ttl_s": 100, "timeout_s": 50, "max_jobs": 9, **limits})
        store = JobStore(server.connect(), wanted, RECORDS, LEASE_S)
        jobs = JobRunner((work, speaking or Speaking()), wanted, store)
        await jobs.start()
        try:
            yield jobs
        finally:
            await jobs.close()

    return running


async def fetched(jobs, identity, owner=""):
    result, size_bytes, found = await jobs.result(identity, owner)
    pieces = [piece async for piece in found]
    assert size_bytes == len(b"".join(pieces))
    assert all(len(piece) <= MIB for piece in pieces)
    return result, b"".join(pieces)


async def ended(jobs, identity, owner=""):
    async with asyncio.timeout(20):
        async for record in jobs.watch(identity, owner):
            last = record
    return last


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("never")


async def later(server, query, least):
    """Return when the value is at least this."""
    for _ in range(1000):
        if (await server.query(query))[0][0] >= least:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("never")


async def kill(jobs):
    """End a server as SIGKILL does, so that it releases no claim."""

    async def nothing(claim, *, lost):
        pass

    jobs._store.release = nothing
    await jobs.close()


async def test_any_server_takes_and_answers(run):
    """One server accepts a job and another one does it. Both answer for its state and its result."""
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
        done = await ended(other, taken.id)
        assert (done.state, done.done_s, done.duration_s) == (RecordState.SUCCEEDED, 9.0, 9.0)
        assert (taken.id, request, recording) in second.runs
        for jobs in (one, other):
            assert await jobs.get(taken.id) == done
            assert await fetched(jobs, taken.id) == (RESULT, 2 * recording)
            async with jobs.transcript(taken.id, "", "") as (_, transcript):
                assert transcript == TRANSCRIPT
        first.go.set()
        await ended(other, blocked.id)


async def test_progress_reaches_watchers_elsewhere(run):
    """A watcher at a server that does not run the job sees its progress and its end."""
    work = Work(None)
    async with run(work) as runs, run(Work()) as other:
        other._draining = True
        taken = await runs.add(REQUEST, io.BytesIO(b"audio"))
        other._draining, seen = False, []
        await until(lambda: work.runs)
        async with asyncio.timeout(20):
            async for record in other.watch(taken.id):
                seen.append((record.state, record.done_s))
                if record.done_s:
                    work.go.set()
        assert seen[-2:] == [(RecordState.RUNNING, 3.0), (RecordState.SUCCEEDED, 9.0)]


async def test_a_server_that_stops_gives_its_jobs_back(run, server):
    """Another server starts at once, before the lease has ended, and the job counts no loss."""
    stopping, work = Work(None), Work()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(run(stopping))
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: stopping.runs)
        await stack.aclose()
    assert await server.query("SELECT lost FROM asr_jobs") == [(0,)]
    async with run(work) as jobs:
        claim = await jobs._store.get(taken.id, "")
        assert (claim.state, claim.started_at) == (RecordState.QUEUED, 0.0)
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED


async def test_what_no_server_survives_fails(run, monkeypatch):
    """After several losses the job fails, so that it does not kill one server after another."""
    monkeypatch.setattr(runner, "_MOST_LOST", 2)
    identity = ""
    for _ in range(3):
        async with run(Work(EngineFailed("an illegal memory access was encountered"))) as jobs:
            identity = identity or (await jobs.add(REQUEST, io.BytesIO(b"audio"))).id
            await until(lambda jobs=jobs: any(one.engine_failed for one in jobs._running.values()))
    work = Work()
    async with run(work) as jobs:
        failed = await ended(jobs, identity)
        assert (failed.state, failed.error.code) == (RecordState.FAILED, "transcription_failed")
        with raises("job_not_finished"):
            await jobs.result(identity)
    assert not work.runs


async def test_speech_begins_anew_at_another_server(run, server):
    """The other server gets only the text. At the end only the result is stored."""
    first, second = Speaking(), Speaking()
    second.go.set()
    async with run(Work(), first) as dead:
        taken = await dead.add(TextRequest(), io.BytesIO(b"[]"), characters=5, expected_bytes=8 * MIB)
        await until(lambda: first.runs)
        await kill(dead)
    await server.pass_time(LEASE_S + 1)
    async with run(Work(), second) as jobs:
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED
        _, content = await fetched(jobs, taken.id)
    assert content == b"head" + bytes(1_000_000) + bytes([1]) * 1_000_000
    files = {row[0] for row in await server.query("SELECT DISTINCT file FROM asr_job_chunks")}
    assert files <= {"result"}


async def test_limits_hold_over_all_servers(run, server):
    """All jobs, a key's jobs, all bytes and a key's bytes have limits. Removing a job frees its part."""
    server.capacity = 60_000
    limits = {"max_jobs": 4, "key_max_jobs": 2, "key_max_bytes": 40_000}
    async with run(Work(*[None] * 9), **limits) as one, run(Work(*[None] * 9), **limits) as other:
        first = await one.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await other.add(REQUEST, io.BytesIO(b"audio"), "ann")
        for jobs in (one, other):
            with pytest.raises(Overloaded, match="2 jobs"):
                await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await one.remove(first.id, "ann")
        with pytest.raises(Overloaded, match="delete finished ones"):
            await other.add(REQUEST, io.BytesIO(bytes(40_000)), "ann")
        await other.add(REQUEST, io.BytesIO(bytes(35_000)), "ben")
        with pytest.raises(JobsUnavailable, match="JOBS_DATABASE_MB"):
            await one.add(REQUEST, io.BytesIO(bytes(30_000)), "dan")
        coming = [jobs.add(REQUEST, io.BytesIO(b"x"), name) for jobs in (one, other) for name in ("eve", "fay")]
        taken = await asyncio.gather(*coming, return_exceptions=True)
        assert sum(isinstance(answer, Overloaded) for answer in taken) == 2


async def test_a_job_is_its_owners_alone(run):
    """Other owners do not find it. Nobody finds a job that is not accepted yet."""
    async with run(Work()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await ended(jobs, taken.id, "ann")
        for identity in (taken.id, "job_unknown"):
            for refused in (jobs.get, jobs.result):
                with raises("job_not_found"):
                    await refused(identity, "ben")
            with raises("job_not_found"):
                await anext(jobs.watch(identity, "ben"))
        with raises("job_not_found"):
            await jobs.remove(taken.id, "ben")
        await jobs.remove(taken.id, "ann")


async def test_removing_stops_the_run_wherever_it_is(run, server):
    """Its watchers end, and none of its files is left."""
    work = Work(None)
    async with run(work) as runs, run(Work()) as other:
        other._draining = True
        taken = await runs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: work.runs)
        watcher = asyncio.create_task(ended(runs, taken.id))
        await asyncio.sleep(0.1)
        await other.remove(taken.id)
        assert not (await watcher).state.over
        await until(lambda: not runs._running)
        assert await server.query("SELECT count(*) FROM asr_jobs, asr_job_chunks") == [(0,)]


async def test_a_stopped_server_that_goes_on_ends_its_run(run, server):
    """The server fails to renew its claim and cancels its run. The result is the other server's."""
    frozen, work = Work(None), Work()
    async with run(frozen) as one:
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: frozen.runs)
        one._tasks.pop().cancel()  # which renews
        one._draining = True
        await server.pass_time(LEASE_S + 1)
        async with run(work) as other:
            assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
            assert one._running
            one._tasks.append(asyncio.create_task(one._share()))
            await until(lambda: not one._running)
            assert (await fetched(one, taken.id))[1] == b"audioaudio"


async def test_what_runs_for_longer_than_a_lease_stays_where_it_runs(run, server):
    """The server renews the claim, also while the job reports nothing. Another server takes it over when that ends."""
    runs, work = Work(None), Work()
    async with run(runs) as dead, run(work) as other:
        other._draining = True
        taken = await dead.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: runs.runs)
        other._draining = False
        for _ in range(4):
            before = await server.query("SELECT lease_until FROM asr_jobs")
            await server.pass_time(LEASE_S / 2)
            await later(server, "SELECT lease_until FROM asr_jobs", before[0][0] + LEASE_S / 2)
        assert not work.runs
        await kill(dead)
        await server.pass_time(LEASE_S + 1)
        assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
        assert len(work.runs) == 1


async def test_a_server_whose_engine_failed_begins_no_more_jobs(run, server):
    """The job counts a loss when it is released. Waiting jobs are for other servers."""
    work = Work(EngineFailed("an illegal memory access was encountered"))
    async with run(work) as jobs:
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: any(one.engine_failed for one in jobs._running.values()))
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await asyncio.sleep(0.3)
        assert len(work.runs) == 1
    assert await server.query("SELECT state, lost FROM asr_jobs ORDER BY place") == [("queued", 1), ("queued", 0)]


async def test_removing_stops_the_run_here_at_once(run, monkeypatch):
    """The run does not wait for the next renewal of its claim."""
    monkeypatch.setattr(runner, "_RENEW_S", 1_000)
    work = Work(None)
    async with run(work) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: work.runs)
        await asyncio.sleep(0.2)  # its progress is written
        await jobs.remove(taken.id)
        assert not jobs._running
