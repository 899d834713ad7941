"""The runners of several servers with one database, in one process, with scripted work. `conftest.py` has the database,
and E2Etest/shared_jobs runs the same tests on PostgreSQL."""

from __future__ import annotations

import asyncio
import io
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import replace

import pytest

from asr_server.core.errors import (
    EngineFailed,
    InvalidAudio,
    JobNotFinished,
    JobNotFound,
    JobsUnavailable,
    Overloaded,
    ShuttingDown,
    SpeechFailed,
    TranscriptionFailed,
)
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.features.shared_jobs import shared_store
from asr_server.features.shared_jobs.database_store import DatabaseStore
from asr_server.features.shared_jobs.shared_store import RecordFeed, SharedStore
from asr_server.features.speech_output.requests import SpeechJobRequest
from asr_server.jobs import runner
from asr_server.jobs import runner as job_work
from asr_server.jobs.record import JobRecord, RecordFormat, RecordState, new_id, transcript_dumped
from asr_server.jobs.runner import JobOutcome, JobProgress, JobRunner, RecordingJobs, TextSize
from asr_server.jobs.store import ClaimLost, JobLimits
from asr_server.recordings.requests import KnownSpeaker, Result, SpeakerOptions, TranscriptionRequest

FIRST, SECOND = (JobRecord(new_id(), TranscriptionRequest(), 1.0) for _ in range(2))


SAID = Segment(0, 900, "Hi.", "English", (7,), float("-inf"), 0.1, words=(Word("Hi.", 0, 900, TimeSource.ALIGNED),))
TRANSCRIPT = Transcript("Hi.", "English", 1_000, (SAID,))


class Table:
    """Records by id. `reads`: the ids that were asked for together."""

    def __init__(self, *records):
        self.records, self.reads, self.away = {record.id: record for record in records}, [], False
        self._read = asyncio.Condition()

    async def was_read(self, times):
        """Return when it was read so often."""
        async with asyncio.timeout(20):
            async with self._read:
                await self._read.wait_for(lambda: len(self.reads) >= times)

    async def read(self, identities):
        async with self._read:
            self.reads.append(set(identities))
            self._read.notify_all()
        if self.away:
            raise JobsUnavailable("away")
        return {identity: self.records[identity] for identity in identities if identity in self.records}


@pytest.fixture
async def feed_of(monkeypatch):
    """A function that makes a feed of a table, which reads without a pause."""
    monkeypatch.setattr(shared_store, "_PAUSE_S", 0.01)
    monkeypatch.setattr(shared_store, "_LEAST_PAUSE_S", 0.0)
    tasks = []

    def made(table):
        feed = RecordFeed(table.read)
        tasks.append(asyncio.create_task(feed.run()))
        return feed

    yield made
    for task in tasks:
        task.cancel()


async def last_of(feed, record, until):
    """The record that a watcher sees when `until` holds, or None when the job is removed first."""
    async with aclosing(feed.changes(record)) as changes:
        async for seen in changes:
            if until(seen):
                return seen
    return None


async def test_watchers_are_read_for_together_until_they_leave(feed_of):
    """One read has the jobs of all; nothing is read when nobody watches."""
    table = Table(FIRST, SECOND)
    feed = feed_of(table)
    over = [
        asyncio.create_task(last_of(feed, record, lambda seen: seen.state.over)) for record in (FIRST, SECOND, FIRST)
    ]
    await table.was_read(3)
    assert {FIRST.id, SECOND.id} in table.reads
    table.records = {one.id: replace(one, state=RecordState.FAILED) for one in (FIRST, SECOND)}
    assert await asyncio.gather(*over) == [table.records[one.id] for one in (FIRST, SECOND, FIRST)]
    await asyncio.sleep(0.05)
    count = len(table.reads)
    await asyncio.sleep(0.05)
    assert len(table.reads) == count


async def test_a_watcher_of_a_removed_job_ends(feed_of):
    """The end comes without another record."""
    table = Table()
    assert await last_of(feed_of(table), FIRST, lambda seen: False) is None


async def test_who_begins_to_watch_sees_what_was_read_last(feed_of):
    """The first record is not the one that the reader had itself, which is older."""
    newer = replace(FIRST, done_s=3.0)
    table = Table(newer)
    feed = feed_of(table)
    async with aclosing(feed.changes(FIRST)) as changes:
        while await anext(changes) != newer:
            pass
        table.away = True
        assert await last_of(feed, FIRST, lambda seen: True) == newer


async def test_watchers_wait_while_nothing_can_be_read(feed_of):
    """They see what happened meanwhile."""
    table = Table(FIRST)
    feed, table.away = feed_of(table), True
    watcher = asyncio.create_task(last_of(feed, FIRST, lambda seen: seen.state.over))
    await table.was_read(3)
    table.records, table.away = {FIRST.id: replace(FIRST, state=RecordState.FAILED)}, False
    assert (await watcher).state is RecordState.FAILED


async def test_who_wakes_the_watchers_wakes_them_without_a_read(feed_of, monkeypatch):
    """They look at something else, such as whether the server stops."""
    table = Table(FIRST)
    feed, table.away, stops = feed_of(table), True, []
    watcher = asyncio.create_task(last_of(feed, FIRST, lambda seen: bool(stops)))
    await table.was_read(3)
    assert not watcher.done()
    stops.append(True)
    feed.wake()
    assert await watcher == FIRST


REQUEST, MIB = TranscriptionRequest(), 2**20
RESULT = Result(b"", "text/plain", file_name="subtitles.srt", time_source="mixed")
LEASE_S = 5.0

RECORDS = RecordFormat((*RecordingJobs.request_types, SpeechJobRequest))


class Work:
    """Reports progress, does what `script` says for each job in turn (None: waits for `go`), and answers with the
    recording twice."""

    request_types = RecordingJobs.request_types
    unexpected_error = TranscriptionFailed

    def __init__(self, *script):
        self.script, self.runs, self.go = list(script), [], asyncio.Event()

    async def process(self, run):
        request = run.store.request(run.record)
        with run.store.recording(run.record.id) as file:
            recording = file.read()
        self.runs.append((run.record.id, request, recording))
        run.report(JobProgress(3.0, 9.0))
        step = self.script.pop(0) if self.script else True
        if step is None:
            await self.go.wait()
        elif isinstance(step, Exception):
            raise step
        run.store.keep_transcript(run.record.id, transcript_dumped(TRANSCRIPT))
        return JobOutcome(RESULT, 2 * recording, 9.0)


class Speaking:
    """Makes a part of speech, keeps it, and waits for `go` before each one but the first; the result is a file.

    Parts of another voice are made anew.
    """

    request_types = (SpeechJobRequest,)
    unexpected_error = SpeechFailed

    def __init__(self, voice=0):
        self.voice, self.made, self.go = voice, [], asyncio.Event()

    def key(self, number):
        return f"{number + 10 * self.voice:064x}"

    async def process(self, run):
        with run.store.parts(run.record.id) as spoken:
            if [part.key for part in spoken.finished[:1]] != [self.key(0)]:
                spoken.cut(0)
            for number in range(len(spoken.finished), 3):
                if number:
                    await self.go.wait()
                spoken.write(bytes([number, 0]) * 1_000_000)
                spoken.finish_part(self.key(number))
                self.made.append(number)
                await run.store.keep_parts(run.record.id, spoken)
            spoken.rewind()
            with run.store.new_result(run.record.id) as file:
                file.write(b"????")
                for part in spoken.finished:
                    for block in spoken.blocks(part):
                        file.write(block)
                file.seek(0)
                file.write(b"head")
                run.store.keep_result(run.record.id, file)
        return JobOutcome(Result(b"", "audio/wav"), None, 1.0)


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    """Seconds become tenths of a second."""
    for module, name, value in (
        (shared_store, "LEASE_S", LEASE_S),
        (shared_store, "_COUNT_S", 0.2),
        (runner, "_RENEW_S", 0.2),
        (runner, "_REPORT_S", 0.05),
        (runner, "_LOOK_S", 0.1),
        (job_work, "_RETRY_S", 0.1),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def run(connect, tmp_path):
    """A function that runs one server's part: `async with run(work) as jobs`."""

    @asynccontextmanager
    async def running(work, speaking=None, **limits):
        wanted = JobLimits(**{"ttl_s": 100, "timeout_s": 50, "max_jobs": 9, "max_bytes": 100 * MIB, **limits})
        rows = DatabaseStore(connect(), LEASE_S, RECORDS)
        store = SharedStore(rows, wanted, tmp_path / "state")
        jobs = JobRunner((work, speaking or Speaking()), wanted, store)
        await jobs.start()
        try:
            yield jobs
        finally:
            await jobs.close()

    return running


async def fetched(jobs, identity, owner=""):
    result, content = await jobs.result(identity, owner)
    with closing(content):
        pieces = [piece async for piece in content.pieces()]
    assert content.size_bytes == len(b"".join(pieces))
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


async def kill(jobs):
    """End a server as kill -9 does: nothing is given back."""

    async def nothing(claim, *, lost):
        pass

    jobs._store.release = nothing
    await jobs.close()


async def test_any_server_takes_and_answers(run, tmp_path):
    """A job that one accepted is done by another, with its clips, and each has its state and its result, in chunks."""
    recording = bytes(range(256)) * 10_000
    known = (KnownSpeaker("Ann", b"RIFF\xff"), KnownSpeaker("Ben", b"RIFF\x00"))
    request = TranscriptionRequest(speakers=SpeakerOptions(known=known))
    first, second = Work(None), Work()
    async with run(first) as one, run(second) as other:
        blocked = await one.add(REQUEST, io.BytesIO(b"x"))
        await until(lambda: first.runs or second.runs)
        one.drain()
        taken = await one.add(request, io.BytesIO(recording))
        assert taken.request.speakers.known == (KnownSpeaker("Ann", b""), KnownSpeaker("Ben", b""))
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
    assert not any((tmp_path / "state").iterdir())


async def test_progress_reaches_watchers_elsewhere(run, monkeypatch):
    """A watcher at a server that does not run the job sees it run, and its end, long before the claim is renewed."""
    monkeypatch.setattr(runner, "_RENEW_S", 1_000)
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
    """Another begins at once, long before the lease is over, and it counts as no loss."""
    stopping, work = Work(None), Work()
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(run(stopping))
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: stopping.runs)
        await stack.aclose()
    assert server.query("SELECT lost FROM asr_jobs") == ["0"]
    async with run(work) as jobs:
        claim = await jobs._store.get(taken.id, "")
        assert (claim.state, claim.started_at) == (RecordState.QUEUED, 0.0)
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED


async def test_what_no_server_survives_fails(run, monkeypatch):
    """After some losses the job says so, instead of ending one server after the other."""
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
        with pytest.raises(JobNotFinished):
            await jobs.result(identity)
    assert not work.runs


async def test_speech_goes_on_with_its_finished_parts(run, server, pass_time):
    """A server that takes a text over speaks what is missing; nothing but the result is left at the end."""
    first, second = Speaking(), Speaking()
    second.go.set()
    async with run(Work(), first) as dead:
        taken = await dead.add(SpeechJobRequest(), io.BytesIO(b"[]"), text=TextSize(5, 8 * MIB))
        await until(lambda: first.made)
        await until(lambda: server.query("SELECT count(*) FROM asr_job_parts") == ["1"])
        await kill(dead)
    await pass_time(LEASE_S + 1)
    async with run(Work(), second) as jobs:
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED
        _, content = await fetched(jobs, taken.id)
    assert (first.made, second.made) == ([0], [1, 2])
    parts = [bytes([number, 0]) * 1_000_000 for number in range(3)]
    assert content == b"head" + b"".join(parts)
    assert server.query("SELECT DISTINCT file FROM asr_job_chunks") == ["result"]


async def test_a_key_does_not_hold_up_another(run):
    """A server runs two jobs of one key at most; its third place is for others."""
    work = Work(*[None] * 9)
    async with run(work) as jobs:
        many = [await jobs.add(REQUEST, io.BytesIO(b"ann"), "ann") for _ in range(4)]
        await until(lambda: len(work.runs) == 2)
        other = await jobs.add(REQUEST, io.BytesIO(b"ben"), "ben")
        await until(lambda: len(work.runs) == 3)
        assert {identity for identity, *_ in work.runs} == {many[0].id, many[1].id, other.id}


async def test_limits_hold_over_all_servers(run):
    """All jobs, a key's jobs, a key's bytes and all bytes have limits; removing a job frees its part."""
    limits = {"max_jobs": 4, "key_max_jobs": 2, "key_max_bytes": 40_000, "max_bytes": 60_000}
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
    """To others there is no such job, and what is not accepted yet is none to anybody."""
    async with run(Work()) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann")
        await ended(jobs, taken.id, "ann")
        arriving = await jobs._store.rows.add(JobRecord(new_id(), REQUEST, 1.0, owner="ben"), 5, lambda shares: None)
        for identity in (taken.id, arriving.id, "job_unknown"):
            for refused in (jobs.get, jobs.result):
                with pytest.raises(JobNotFound):
                    await refused(identity, "ben")
            with pytest.raises(JobNotFound):
                await anext(jobs.watch(identity, "ben"))
        with pytest.raises(JobNotFound):
            await jobs.remove(taken.id, "ben")
        await jobs.remove(taken.id, "ann")


async def test_removing_stops_the_run_wherever_it_is(run, server):
    """Its watchers end, and nothing of it is left."""
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
        assert server.query("SELECT count(*) FROM asr_jobs, asr_job_chunks") == ["0"]


async def test_jobs_are_removed_in_time(run, server, pass_time):
    """Finished ones after JOB_TTL, and those whose recordings broke off."""
    async with run(Work(), ttl_s=0.2) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, taken.id)
        broken = await jobs._store.rows.add(JobRecord(new_id(), REQUEST, 1.0), 5, lambda shares: None)
        await jobs._store.rows.write(broken, "recording", io.BytesIO(b"audio"))
        await pass_time(LEASE_S + 1)
        await jobs._store.rows.sweep()
        assert server.query("SELECT count(*) FROM asr_jobs") == ["0"]
        with pytest.raises(JobNotFound):
            await jobs.get(taken.id)
        with pytest.raises(ClaimLost):
            await jobs._store.rows.accept(broken)


async def test_a_record_that_cannot_be_read_holds_nobody_up(run, server):
    """A damaged one is put aside, and one of a newer server waits for it."""
    work = Work()
    async with run(work) as jobs:
        jobs._draining = True
        damaged, newer, whole = [await jobs.add(REQUEST, io.BytesIO(b"audio")) for _ in range(3)]
        server.query(f"UPDATE asr_jobs SET record = '{{}}' WHERE id = '{damaged.id}'")
        changed = "replace(record, '\"version\":2', '\"version\":99')"
        server.query(f"UPDATE asr_jobs SET version = 99, record = {changed} WHERE id = '{newer.id}'")
        jobs._draining = False
        assert (await ended(jobs, whole.id)).state is RecordState.SUCCEEDED
        for identity in (damaged.id, newer.id):
            with pytest.raises(JobsUnavailable):
                await jobs.get(identity)
    assert [identity for identity, *_ in work.runs] == [whole.id]
    states = server.query("SELECT state FROM asr_jobs ORDER BY place")
    assert states == ["unreadable", "queued", "succeeded"]


async def test_a_stopped_server_that_goes_on_ends_its_run(run, pass_time):
    """The server renews its claim, learns that it has none, and gives up; the result is the other server's."""
    frozen, work = Work(None), Work()
    async with run(frozen) as one:
        taken = await one.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: frozen.runs)
        renewing = one._tasks[1]
        renewing.cancel()
        one._draining = True
        await pass_time(LEASE_S + 1)
        async with run(work) as other:
            assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
            assert one._running
            one._tasks.append(asyncio.create_task(one._renew()))
            await until(lambda: not one._running)
            assert (await fetched(one, taken.id))[1] == b"audioaudio"


async def test_what_runs_for_longer_than_a_lease_stays_where_it_runs(run, server):
    """Its server renews the claim, also where the job says nothing; another one takes it over when that ends."""
    runs, work = Work(None), Work()
    async with run(runs) as dead, run(work) as other:
        other._draining = True
        taken = await dead.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: runs.runs)
        other._draining = False
        for _ in range(4):
            server.now_s += LEASE_S / 2
            renewed_s = server.now_s + LEASE_S
            await until(lambda least_s=renewed_s: float(server.query("SELECT lease_until FROM asr_jobs")[0]) >= least_s)
        assert not work.runs
        await kill(dead)
        server.now_s += LEASE_S + 1
        assert (await ended(other, taken.id)).state is RecordState.SUCCEEDED
        assert len(work.runs) == 1


async def test_after_an_outage_nothing_is_taken_over_at_once(run, pass_time):
    """The servers that still run jobs have first to renew their claims."""
    lost, work = Work(None), Work()
    async with run(lost) as dead:
        taken = await dead.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: lost.runs)
        await kill(dead)
    await pass_time(LEASE_S + 1)
    async with run(work) as jobs:
        jobs._store.rows.database.steady_s = LEASE_S / 2
        jobs._look.set()
        after = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await ended(jobs, after.id)
        assert [identity for identity, *_ in work.runs] == [after.id]
        jobs._store.rows.database.steady_s = 2 * LEASE_S
        assert (await ended(jobs, taken.id)).state is RecordState.SUCCEEDED


async def test_a_server_whose_engine_failed_begins_no_more_jobs(run, server):
    """The job counts as lost once it is given back; what waits is for others."""
    work = Work(EngineFailed("an illegal memory access was encountered"))
    async with run(work) as jobs:
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: any(one.engine_failed for one in jobs._running.values()))
        await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await asyncio.sleep(0.3)
        assert len(work.runs) == 1
    assert server.query("SELECT state, lost FROM asr_jobs ORDER BY place") == ["queued|1", "queued|0"]


async def test_a_recording_that_breaks_off_leaves_no_place(run):
    """The caller may try again."""

    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError(5, "Input/output error")

    async with run(Work(), max_jobs=1) as jobs:
        with pytest.raises(OSError, match="Input/output"):
            await jobs.add(REQUEST, Broken(b"audio"))
        assert not (await jobs._store.rows.shares()).unfinished
        await jobs.add(REQUEST, io.BytesIO(b"audio"))


async def test_removing_stops_the_run_here_at_once(run, monkeypatch):
    """Not when the claim is next renewed."""
    monkeypatch.setattr(runner, "_RENEW_S", 1_000)
    work = Work(None)
    async with run(work) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        await until(lambda: work.runs)
        await asyncio.sleep(0.2)  # its progress is written
        await jobs.remove(taken.id)
        assert not jobs._running


@pytest.mark.parametrize("fault", ["work", "disk"])
async def test_a_failure_says_why_and_how_far_the_job_came(run, fault, tmp_path):
    """Where the disk has no place for the files of a run, that is why."""
    async with run(Work(InvalidAudio("no audio"))) as jobs:
        if fault == "disk":
            jobs._store._directory = tmp_path / "gone"
        failed = await ended(jobs, (await jobs.add(REQUEST, io.BytesIO(b"audio"))).id)
        expected = ("invalid_audio", 3.0) if fault == "work" else ("jobs_unavailable", 0.0)
        assert (failed.error.code, failed.done_s) == expected


async def test_speech_of_another_voice_takes_the_place_of_what_was_stored(run, server, pass_time):
    """Files that a server has stored before are no part of it."""
    first, second = Speaking(), Speaking(voice=1)
    async with run(Work(), first) as dead:
        await dead.add(SpeechJobRequest(), io.BytesIO(b"[]"), text=TextSize(5, 8 * MIB))
        await until(lambda: server.query("SELECT count(*) FROM asr_job_parts") == ["1"])
        await kill(dead)
    await pass_time(LEASE_S + 1)
    async with run(Work(), second):
        await until(lambda: server.query("SELECT key FROM asr_job_parts") == [second.key(0)])


async def test_a_server_runs_three_jobs_at_once(run):
    """However many owners there are."""
    work = Work(*[None] * 9)
    async with run(work) as jobs:
        for owner in ("ann", "ben", "cem", "dan"):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), owner)
        await until(lambda: len(work.runs) == 3)
        await asyncio.sleep(0.3)
        assert len(work.runs) == 3


async def test_who_watches_does_not_hold_up_the_end(run):
    """A server that stops says so to the watchers of what is not over."""
    work = Work(None)
    async with run(work) as jobs:
        taken = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        watcher = asyncio.create_task(ended(jobs, taken.id))
        await until(lambda: work.runs)
        await asyncio.sleep(0.05)
        jobs.drain()
        with pytest.raises(ShuttingDown):
            await watcher
