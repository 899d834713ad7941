"""The jobs' runner with a scripted processor, which injects faults. E2Etest/contract/test_jobs.py has the real one."""

import asyncio
import io
import threading
import time
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from asr_server.core.errors import (
    EngineFailed,
    IdempotencyKeyReused,
    InvalidAudio,
    JobNotFinished,
    JobNotFound,
    JobsUnavailable,
    Overloaded,
    ShuttingDown,
    SpeechFailed,
)
from asr_server.core.transcript import Segment, Transcript
from asr_server.jobs import disk_store, runner
from asr_server.jobs.disk_store import DiskStore, JobFolders
from asr_server.jobs.record import JobRecord, RecordFormat, RecordState, is_id, new_id
from asr_server.jobs.runner import JobOptions, JobOutcome, JobRunner, RecordingJobs, TextSize
from asr_server.jobs.store import JobLimits
from asr_server.recordings.pipeline import RunOptions, SegmentDone, Started
from asr_server.recordings.requests import KnownSpeaker, Result, SpeakerOptions, TranscriptionRequest
from asr_server.schedule.job import Priority

REQUEST = TranscriptionRequest()
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


@dataclass(frozen=True)
class TextRequest:
    """A request of another kind of jobs, about texts."""

    task: Literal["text"] = "text"


class TextJobs:
    """Does what the script says, for texts."""

    request_types = (TextRequest,)
    unexpected_error = SpeechFailed

    def __init__(self, scripted):
        self.scripted = scripted

    async def process(self, run):
        async def ignore(event):
            pass

        result, _ = await self.scripted.process(None, run.record.request, None, ignore)
        return JobOutcome(result, b"speech", 9.0)


RECORDS = RecordFormat(RecordingJobs.request_types + TextJobs.request_types)


@asynccontextmanager
async def running(directory, processor, **limits):
    wanted = JobLimits(**{"ttl_s": 100, "timeout_s": 50, "max_jobs": 3, **limits})
    kinds = (RecordingJobs(processor), TextJobs(processor))
    jobs = JobRunner(kinds, wanted, DiskStore(wanted, lambda: JobFolders(directory, RECORDS)))
    await jobs.start()
    try:
        yield jobs
    finally:
        await jobs.close()


async def fetched(jobs, identity, owner=""):
    """The whole result."""
    result, content = await jobs.result(identity, owner)
    with closing(content):
        return replace(result, content=b"".join([piece async for piece in content.pieces()]))


async def ended(jobs, identity):
    async for record in jobs.watch(identity):
        last = record
    return last


async def until(condition):
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("never")


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
        first = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", options=JobOptions("k"))
        assert is_id(first.id)
        await jobs.check_room("ann", "k")
        with pytest.raises(Overloaded):
            await jobs.check_room("ann", "l")
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", options=JobOptions("k"))).id == first.id
        for request, audio in ((REQUEST, b"other"), (replace(REQUEST, language="German"), b"audio")):
            with pytest.raises(IdempotencyKeyReused):
                await jobs.add(request, io.BytesIO(audio), "ann", options=JobOptions("k"))
        with pytest.raises(Overloaded):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), "bob", options=JobOptions("k"))
    async with running(tmp_path, processor) as jobs:
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", options=JobOptions("k"))).id == first.id
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), "bob", options=JobOptions("k"))).id != first.id


async def test_of_two_requests_with_a_key_at_once_one_is_told_to_try_again(tmp_path, monkeypatch):
    """Sent again, the request gets the job of the other."""
    goes_on = threading.Event()
    stored = JobFolders.add

    def add(folders, *job):
        assert goes_on.wait(10)
        stored(folders, *job)

    monkeypatch.setattr(JobFolders, "add", add)
    async with running(tmp_path, Scripted()) as jobs:
        first = asyncio.create_task(jobs.add(REQUEST, io.BytesIO(b"audio"), options=JobOptions("k")))
        await until(lambda: jobs._arriving)
        with pytest.raises(Overloaded):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), options=JobOptions("k"))
        goes_on.set()
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), options=JobOptions("other"))).id != (await first).id
        assert (await jobs.add(REQUEST, io.BytesIO(b"audio"), options=JobOptions("k"))).id == (await first).id


async def test_a_job_runs_with_the_voices_that_it_names(tmp_path):
    """Their audio is read when the job runs, also by a later server, and takes no memory before."""
    request = TranscriptionRequest(speakers=SpeakerOptions(known=(KnownSpeaker("Ann", b"RIFF\xff"),)))
    processor = Scripted()
    async with running(tmp_path, Scripted(None)) as jobs:
        taken = await jobs.add(request, io.BytesIO(b"audio"))
        assert taken.request.speakers.known == (KnownSpeaker("Ann", b""),)
        await begun(jobs, taken.id)
    async with running(tmp_path, processor) as jobs:
        await ended(jobs, taken.id)
    assert [given for given, _ in processor.calls] == [request]


async def test_progress_is_reported(tmp_path):
    """A watcher sees the job run, how far it is, and its end."""
    processor = Scripted(None)
    async with running(tmp_path, processor) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        seen = []
        async for record in jobs.watch(taken.id):
            seen.append((record.state, record.done_s))
            if record.done_s:
                processor.go.set()
        assert (RecordState.RUNNING, 3.0) in seen
        assert seen[-1] == (RecordState.SUCCEEDED, 9.0)


@pytest.mark.parametrize(
    ("fault", "code"), [(InvalidAudio("no audio"), "invalid_audio"), (ZeroDivisionError(), "transcription_failed")]
)
async def test_a_failure_is_kept_with_its_code_and_hurts_nobody(tmp_path, fault, code):
    """The job says why; it has no result; the next one runs."""
    async with running(tmp_path, Scripted(fault)) as jobs:
        first = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        failed = await ended(jobs, first.id)
        assert (failed.state, failed.error.code) == (RecordState.FAILED, code)
        assert failed.done_s == 3.0  # how far it came
        with pytest.raises(JobNotFinished):
            await jobs.result(first.id)
        # The caller's recording is not kept for longer than it is needed.
        assert [path.name for path in (tmp_path / "jobs" / first.id).iterdir()] == ["job.json"]
        second = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert (await ended(jobs, second.id)).state is RecordState.SUCCEEDED


async def test_a_full_server_makes_a_job_wait_not_fail(tmp_path):
    """New requests are refused when the server is full; a job was accepted already."""
    processor = Scripted(Overloaded("full"), Overloaded("full"))
    async with running(tmp_path, processor) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED
    assert len(processor.calls) == 3


async def test_a_restart_keeps_what_is_done_and_begins_anew_what_is_not(tmp_path):
    """The next server has the results, and runs what ran and what waited, in its order."""
    async with running(tmp_path, Scripted(RESULT, None, None)) as jobs:
        ids = [(await jobs.add(REQUEST, io.BytesIO(b"audio"))).id]
        await ended(jobs, ids[0])
        ids += [(await jobs.add(REQUEST, io.BytesIO(b"audio"))).id for _ in range(3)]
        await begun(jobs, ids[2])
        assert (await jobs.get(ids[3])).state is RecordState.QUEUED
    processor = Scripted()
    async with running(tmp_path, processor) as jobs:
        assert (await fetched(jobs, ids[0])).content == b"words"
        for identity in ids:
            assert (await ended(jobs, identity)).state is RecordState.SUCCEEDED
    assert len(processor.calls) == 3


@pytest.mark.parametrize("end", [EngineFailed("an illegal memory access was encountered"), ShuttingDown("stopping")])
async def test_jobs_outlive_an_engine_that_ends(tmp_path, end):
    """The process ends; what ran and what waited is done by the next one."""
    lost = Scripted(*[end] * 5)
    async with running(tmp_path, lost, max_jobs=5) as jobs:
        taken = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(3)]
        await until(lambda: len(lost.calls) >= 2)
        await asyncio.sleep(0.05)
        assert not any([(await jobs.get(one.id)).state.over for one in taken])
    async with running(tmp_path, Scripted(), max_jobs=5) as jobs:
        assert {(await ended(jobs, one.id)).state for one in taken} == {RecordState.SUCCEEDED}


async def test_a_runner_ends_although_a_job_cannot_be_given_back(tmp_path, monkeypatch):
    """The next one finds it as one that ran."""

    async def fails(store, claim, *, lost):
        raise OSError(28, "no space left on device")

    async with running(tmp_path, Scripted(None, None)) as jobs:
        taken = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(2)]
        for one in taken:
            await begun(jobs, one.id)
        monkeypatch.setattr(DiskStore, "release", fails)
    monkeypatch.undo()
    async with running(tmp_path, Scripted()) as jobs:
        assert {(await ended(jobs, one.id)).state for one in taken} == {RecordState.SUCCEEDED}


async def test_what_a_server_that_is_gone_had_begun_waits_again(tmp_path):
    """A record that says that the job runs is of the past: until its turn comes it is queued, without progress."""
    store, ids = JobFolders(tmp_path, RECORDS), [new_id() for _ in range(3)]
    for number, identity in enumerate(ids):
        begun_before = {"state": RecordState.RUNNING, "started_at": 2.0, "done_s": 3.0, "duration_s": 9.0}
        store.add(JobRecord(identity, REQUEST, 1.0 + number, **begun_before), io.BytesIO(b"audio"))
    store.close()
    async with running(tmp_path, Scripted(None, None)) as jobs:
        await begun(jobs, ids[1])
        waits = await jobs.get(ids[2])
        assert (waits.state, waits.started_at, waits.done_s) == (RecordState.QUEUED, 0.0, 0.0)


async def test_removing_stops_and_forgets(tmp_path):
    """A running job is cancelled, its watchers end, its files are gone, and its id means nothing."""
    async with running(tmp_path, Scripted(None)) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        watcher = asyncio.create_task(ended(jobs, taken.id))
        await begun(jobs, taken.id)
        await jobs.remove(taken.id)
        assert not (await watcher).state.over
        assert not list((tmp_path / "jobs").iterdir())
        with pytest.raises(JobNotFound):
            await jobs.get(taken.id)
        another = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert (await ended(jobs, another.id)).state is RecordState.SUCCEEDED


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


async def test_results_are_forgotten_in_time(tmp_path):
    """After JOB_TTL a finished job is gone, from memory and from disk."""
    async with running(tmp_path, Scripted(), ttl_s=0.2) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, taken.id)
        await until(lambda: not list((tmp_path / "jobs").iterdir()))
        with pytest.raises(JobNotFound):
            await jobs.get(taken.id)


async def test_too_many_jobs_are_refused(tmp_path):
    """The number that may wait is bounded; the refusal says to come back."""
    async with running(tmp_path, Scripted(None, None), max_jobs=2) as jobs:
        for _ in range(2):
            await jobs.add(REQUEST, io.BytesIO(b"audio"))
        with pytest.raises(Overloaded):
            await jobs.add(REQUEST, io.BytesIO(b"audio"))


async def test_jobs_that_come_together_are_counted_together(tmp_path):
    """The bound holds also while recordings are still being kept."""
    async with running(tmp_path, Scripted(None, None), max_jobs=2) as jobs:
        coming = [jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(5)]
        taken = await asyncio.gather(*coming, return_exceptions=True)
        assert sum(isinstance(one, Overloaded) for one in taken) == 3


async def test_a_result_that_cannot_be_kept_fails_the_job_for_good(tmp_path, monkeypatch):
    """A full disk: the job says so, its recording makes room, and the next server does not run it again."""
    kept = JobFolders._write

    def full(self, identity, name, content):
        if name == "result":
            raise OSError(28, "No space left on device")
        kept(self, identity, name, content)

    monkeypatch.setattr(JobFolders, "_write", full)
    async with running(tmp_path, Scripted()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        failed = await ended(jobs, taken.id)
        assert (failed.error.code, failed.result) == ("jobs_unavailable", None)
        assert [path.name for path in (tmp_path / "jobs" / taken.id).iterdir()] == ["job.json"]
    processor = Scripted()
    async with running(tmp_path, processor) as jobs:
        assert (await jobs.get(taken.id)).state is RecordState.FAILED
    assert not processor.calls


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
            read_only.setattr(JobFolders, "remove", _refusing)
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

        def failing(self, identity):
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as failed:
            failed.setattr(JobFolders, "result", failing)
            with pytest.raises(JobsUnavailable, match="Input/output"):
                await jobs.result(taken.id)
        assert await fetched(jobs, taken.id) == RESULT


def _refusing(self, identity):
    raise JobsUnavailable("The job cannot be removed (Read-only file system).")


async def test_without_a_store_every_call_says_why_until_there_is_one(tmp_path, monkeypatch):
    """A server without a usable directory runs, refuses jobs, and tries again: here until another server has ended."""
    monkeypatch.setattr(disk_store, "_OPEN_AGAIN_S", 0.01)
    other = JobFolders(tmp_path, RECORDS)
    async with running(tmp_path, Scripted()) as jobs:
        with pytest.raises(JobsUnavailable, match="Another server"):
            await jobs.add(REQUEST, io.BytesIO(b"audio"))
        left = JobRecord(new_id(), REQUEST, 1.0)
        other.add(left, io.BytesIO(b"audio"))
        other.close()
        await until(lambda: any(jobs.counts.values()))
        assert (await ended(jobs, left.id)).state is RecordState.SUCCEEDED


async def test_jobs_are_counted_by_state(tmp_path):
    """What ran, what failed, what still runs and what waits behind it."""
    processor = Scripted(RESULT, InvalidAudio("no"), None, None)
    async with running(tmp_path, processor, max_jobs=9) as jobs:
        for _ in range(2):
            await ended(jobs, (await jobs.add(REQUEST, io.BytesIO(b"audio"))).id)
        for _ in range(2):
            await begun(jobs, (await jobs.add(REQUEST, io.BytesIO(b"audio"))).id)
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert jobs.counts == {
            RecordState.SUCCEEDED: 1,
            RecordState.FAILED: 1,
            RecordState.RUNNING: 2,
            RecordState.QUEUED: 1,
        }


async def test_a_job_is_its_owners_alone(tmp_path):
    """Nobody else sees, watches, fetches or removes it, also after a restart: to them there is no such job."""
    async with running(tmp_path, Scripted()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        async for _ in jobs.watch(taken.id, "ann"):
            pass
    async with running(tmp_path, Scripted()) as jobs:
        for owner in ("ben", ""):
            for refused in (jobs.result, jobs.remove):
                with pytest.raises(JobNotFound):
                    await refused(taken.id, owner)
            with pytest.raises(JobNotFound):
                await jobs.get(taken.id, owner)
            with pytest.raises(JobNotFound):
                await anext(jobs.watch(taken.id, owner))
        assert await fetched(jobs, taken.id, "ann") == RESULT
        await jobs.remove(taken.id, "ann")


async def test_a_key_does_not_hold_up_another(tmp_path):
    """With as many jobs as there are, at most two of one owner run, and the next place is another's."""
    processor = Scripted(None, None)
    async with running(tmp_path, processor, max_jobs=9) as jobs:
        many = [await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann") for _ in range(5)]
        other = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ben")
        async for record in jobs.watch(other.id, "ben"):
            last = record
        assert last.state is RecordState.SUCCEEDED
        assert [(await jobs.get(job.id, "ann")).state for job in many] == [RecordState.RUNNING] * 2 + [
            RecordState.QUEUED
        ] * 3


async def test_a_key_has_its_share_of_jobs_and_of_the_disk(tmp_path):
    """What one has too much of is refused, and another may have it. What was deleted is free again."""
    shares = {"max_jobs": 9, "key_max_jobs": 2, "key_max_bytes": 40_000}
    async with running(tmp_path, Scripted(None, None), **shares) as jobs:
        first, _ = [await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann") for _ in range(2)]
        with pytest.raises(Overloaded, match="2 jobs"):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await jobs.add(REQUEST, io.BytesIO(b"audio"), "ben")
        await jobs.remove(first.id, "ann")
        large = io.BytesIO(bytes(35_000))
        with pytest.raises(Overloaded, match="MiB, and with this one"):
            await jobs.add(REQUEST, large, "ann")
        await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await jobs.add(REQUEST, large, "dan")


class Clock:
    """The clock on the wall, which somebody may set."""

    def __init__(self, monkeypatch):
        self.offset_s, real = 0.0, time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.offset_s)


YEARS_S = 20 * 365 * 86_400.0


@pytest.mark.parametrize("jump_s", [YEARS_S, -YEARS_S])
async def test_results_stay_when_the_clock_jumps(tmp_path, monkeypatch, jump_s):
    """Their time is counted by a clock that nobody sets, and neither a start nor two forget them for the other's."""
    monkeypatch.setattr(runner, "_SWEEP_S", 0.01)
    clock = Clock(monkeypatch)
    async with running(tmp_path, Scripted()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, taken.id)
        clock.offset_s = jump_s
        await asyncio.sleep(0.1)
        assert await fetched(jobs, taken.id) == RESULT
    for _ in range(2):
        async with running(tmp_path, Scripted()) as jobs:
            await asyncio.sleep(0.1)
            assert await fetched(jobs, taken.id) == RESULT


async def test_a_result_from_long_ago_is_kept_once_more_and_not_for_ever(tmp_path, monkeypatch):
    """The server did not run when its time came: the first start gives it another while, and the next ones do not."""
    clock = Clock(monkeypatch)
    async with running(tmp_path, Scripted()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, taken.id)
    clock.offset_s = YEARS_S
    async with running(tmp_path, Scripted()) as jobs:
        assert await jobs.get(taken.id)
    clock.offset_s += 101
    async with running(tmp_path, Scripted()):
        await until(lambda: not list((tmp_path / "jobs").iterdir()))


async def test_speech_has_its_place_on_the_disk_from_the_beginning(tmp_path, monkeypatch):
    """What it will take counts while it is made, also after a restart; at its end, what it takes."""
    spoken, mib = TextRequest(), 2**20
    async with running(tmp_path, Scripted(None), key_max_bytes=10 * mib) as jobs:
        await jobs.add(spoken, io.BytesIO(b"[]"), "ann", text=TextSize(5, 8 * mib))
        with pytest.raises(Overloaded):
            await jobs.add(spoken, io.BytesIO(b"[]"), "ann", text=TextSize(5, 4 * mib))
        await jobs.add(spoken, io.BytesIO(b"[]"), "bob", text=TextSize(5, 4 * mib))
        # What the speech under way will take is not free any more, whoever asks.
        monkeypatch.setattr(JobFolders, "free_bytes", lambda store: 20 * mib)
        with pytest.raises(JobsUnavailable, match="which has less"):
            await jobs.add(spoken, io.BytesIO(b"[]"), text=TextSize(5, 9 * mib))
        await jobs.add(spoken, io.BytesIO(b"[]"), text=TextSize(5, 7 * mib))
        monkeypatch.undo()
    processor = Scripted(None, None)
    async with running(tmp_path, processor, key_max_bytes=10 * mib) as jobs:
        with pytest.raises(Overloaded):
            await jobs.add(spoken, io.BytesIO(b"[]"), "ann", text=TextSize(5, 4 * mib))
        processor.go.set()
        await until(lambda: jobs.counts[RecordState.SUCCEEDED] == 3)
        await jobs.add(spoken, io.BytesIO(b"[]"), "ann", text=TextSize(5, 4 * mib))
        free_bytes = JobFolders.free_bytes(jobs._store._folders_or_reason)
        with pytest.raises(JobsUnavailable, match="which has less"):
            await jobs.add(spoken, io.BytesIO(b"[]"), text=TextSize(5, 2 * free_bytes))


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


async def test_a_finished_job_that_its_owner_removed_does_not_keep_later_ones(tmp_path, monkeypatch):
    """The others still go when their time has passed."""
    monkeypatch.setattr(runner, "_SWEEP_S", 0.01)
    async with running(tmp_path, Scripted(), ttl_s=0.3) as jobs:
        first, second = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(2)]
        for job in (first, second):
            await ended(jobs, job.id)
        await jobs.remove(first.id)
        await until(lambda: not list((tmp_path / "jobs").iterdir()))
        with pytest.raises(JobNotFound):
            await jobs.get(second.id)


async def test_an_expiry_that_a_wrong_clock_wrote_years_ahead_counts_as_the_time_of_a_result(tmp_path, monkeypatch):
    """A server whose clock was years ahead kept it once more; the next one removes it after `ttl_s` all the same."""
    monkeypatch.setattr(runner, "_SWEEP_S", 0.01)
    clock = Clock(monkeypatch)
    async with running(tmp_path, Scripted()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, taken.id)
    clock.offset_s = YEARS_S
    async with running(tmp_path, Scripted()) as jobs:
        assert (await jobs.get(taken.id)).expires_at > YEARS_S
    clock.offset_s = 0.0
    async with running(tmp_path, Scripted(), ttl_s=0.3) as jobs:
        assert await jobs.get(taken.id)
        await until(lambda: not list((tmp_path / "jobs").iterdir()))
