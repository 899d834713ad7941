"""Jobs in SQLite on a disk: SIGKILL at every step, a full disk, files of other programs, and clocks that jump."""

import asyncio
import io
import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from asr_server.core.errors import JobsUnavailable
from asr_server.jobs.conftest import RECORDS, REQUEST, RESULT, FastSqlite
from asr_server.jobs.database import Sqlite
from asr_server.jobs.record import FollowUp, FollowUpState, JobRecord, RecordState, id_of, new_id
from asr_server.jobs.store import JobLimits, JobStore
from asr_server.jobs.store_test import NOBODY, accepted, content

TTL_S = 100.0


def opened(directory, made=FastSqlite):
    return JobStore(made(directory, TTL_S), JobLimits(TTL_S, 50, 9), RECORDS)


@pytest.fixture
async def jobs(tmp_path):
    made = opened(tmp_path)
    await made.database.prepare()
    yield made
    await made.database.close()


class Killed(FastSqlite):
    """Raised at the step at which the process is killed: before a statement or a change of a file."""

    left = 0

    async def write(self, *values):
        return await self._step(super().write, *values)

    def _drop(self, *values):
        return self._step(super()._drop, *values)

    def _execute(self, statement, *values):
        return self._step(super()._execute, statement, *values)

    @classmethod
    def _step(cls, work, *values):
        cls.left -= 1
        if cls.left < 0:
            os._exit(9)
        return work(*values)


NAMES = [id_of("", name) for name in ("done", "removed", "cancelled", "waits")]


async def _life(directory, say):
    """Make four jobs, and end three: one done, whose request is sent, one removed, one cancelled."""
    jobs = opened(directory, Killed)
    done, removed, cancelled, _ = NAMES
    for identity in NAMES:
        follow_up = FollowUp("callback_url", "https://a.test/") if identity == done else None
        await jobs.add(JobRecord(identity, REQUEST, 1.0, follow_up=follow_up), io.BytesIO(b"audio"), 5)
        say(f"added {identity}")
    claim = await jobs.claim(2.0)
    assert claim.id == done
    await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"words"), b"said")
    say(f"ended {done}")
    assert await jobs.remove(removed, "")
    say(f"gone {removed}")
    assert await jobs.cancel(replace(await jobs.get(cancelled, ""), state=RecordState.CANCELLED))
    say(f"ended {cancelled}")
    claim = await jobs.claim_follow_up(NOBODY)
    say("sent")
    await jobs.keep_follow_up(claim, _sent(claim.record), None)
    say("over")


def _sent(record):
    return replace(record, follow_up=replace(record.follow_up, state=FollowUpState.DONE))


def _said_before(directory, step):
    """Return what a child process acknowledged until it was killed at the step."""
    reads, writes = os.pipe()
    if not (child := os.fork()):
        try:
            Killed.left = step
            asyncio.run(_life(directory, lambda line: os.write(writes, f"{line}\n".encode())))
        finally:
            os._exit(1)
    os.close(writes)
    with open(reads) as lines:
        said = lines.read().splitlines()
    os.waitpid(child, 0)
    return said


async def _check(directory, said):
    jobs = opened(directory)
    await jobs.expire()
    for identity in NAMES:
        job = await jobs.get(identity, "")
        if f"gone {identity}" in said:
            assert job is None
        elif f"ended {identity}" in said:
            assert job.state.over
            assert await content(jobs, identity, "recording") == b""
        elif f"added {identity}" in said:
            assert job is not None or identity == NAMES[1]  # it was being removed
        assert job is None or job.state.over or await content(jobs, identity, "recording") == b"audio"
        if job is not None and job.state is RecordState.SUCCEEDED:
            assert (await content(jobs, identity), await jobs.transcript(identity)) == (b"words", b"said")
    there = {row[0] for row in sqlite3.connect(directory / "jobs.sqlite3").execute("SELECT id FROM asr_jobs")}
    assert {path.name.partition(".")[0] for path in (directory / "jobs").iterdir()} <= there
    while claim := await jobs.claim(3.0):
        await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"again"))
    if (record := await jobs.get(NAMES[0], "")) and record.follow_up.state is FollowUpState.WAITING:
        assert "over" not in said
        claim = await jobs.claim_follow_up(NOBODY)
        assert claim.id == NAMES[0]
        await jobs.keep_follow_up(claim, _sent(claim.record), None)
    assert await jobs.claim_follow_up(NOBODY) is None
    assert await jobs.unfinished() == dict.fromkeys((await jobs.unfinished()), 0)
    await jobs.database.close()


@pytest.mark.slow("starts a process for each step at which it is killed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_server_that_is_killed_at_any_step_loses_nothing(tmp_path, stride):
    """Nothing is there in part, accepted jobs can be done, and the request about an ended one is sent at least once."""
    for step in range(0, 1_000, stride):
        directory = tmp_path / str(step)
        said = _said_before(directory, step)
        asyncio.run(_check(directory, said))
        if "over" in said:
            break
    assert step > 40


async def test_nobody_else_can_read_it(tmp_path):
    jobs = opened(tmp_path / "state")
    await accepted(jobs)
    paths = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert {oct(path.stat().st_mode) for path in paths} == {"0o40700", "0o100600"}
    assert {path.name for path in paths} >= {"jobs.sqlite3", "jobs.sqlite3-wal", "lock", "jobs"}
    await jobs.database.close()


async def test_what_is_no_job_is_left_alone(tmp_path):
    """STATE_DIR may be a shared directory, such as a home with a folder named jobs."""
    (tmp_path / "jobs" / "thesis").mkdir(parents=True)
    theirs = [tmp_path / "lock", tmp_path / "jobs" / "notes.txt", tmp_path / "jobs" / f"{new_id()}.recording"]
    for path in theirs:
        path.write_text("mine")
        path.chmod(0o640)
    tmp_path.chmod(0o755)
    for _ in range(2):
        jobs = opened(tmp_path)
        job = await accepted(jobs)
        await jobs.remove(job.id, "")
        await jobs.expire()
        await jobs.database.close()
    assert {(path.read_text(), oct(path.stat().st_mode)) for path in theirs} == {("mine", "0o100640")}
    assert (oct(tmp_path.stat().st_mode), (tmp_path / "jobs" / "thesis").is_dir()) == ("0o40755", True)


@pytest.mark.parametrize("name", ["lock", "jobs.sqlite3"])
async def test_a_link_is_not_followed(tmp_path, name):
    """A user with write access to the directory must not make the server open a file elsewhere."""
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).symlink_to(tmp_path / "elsewhere")
    jobs = opened(tmp_path / "state")
    with pytest.raises(JobsUnavailable):
        await jobs.unfinished()
    assert (tmp_path / "elsewhere").read_text() == "mine"
    await jobs.database.close()


async def test_a_place_that_cannot_be_used_is_named(tmp_path):
    """A file in place of the directory, no home, a file that is no database, or tables of a newer server."""
    (tmp_path / "state").write_text("")
    damaged, newer = tmp_path / "damaged", tmp_path / "newer"
    damaged.mkdir()
    (damaged / "jobs.sqlite3").write_text("no database" * 1000)
    first = opened(newer)
    await accepted(first)
    async with first.database.transaction() as run:
        await run("UPDATE asr_jobs_schema SET version = 99")
    await first.database.close()
    for directory, reason in (
        (tmp_path / "state", "STATE_DIR"),
        (Path("~no-such-user/state"), "no home"),
        (damaged, "not a database"),
        (newer, "version 99"),
    ):
        jobs = opened(directory)
        for _ in range(2):
            with pytest.raises(JobsUnavailable, match=reason):
                await jobs.unfinished()
        await jobs.database.close()
    assert (damaged / "jobs.sqlite3").read_text() == "no database" * 1000


def _full(*_):
    raise OSError(28, "No space left on device")


async def test_a_result_takes_the_space_of_its_recording(jobs, tmp_path, monkeypatch):
    """On a full disk a result is stored if it fits into the space of its recording. Otherwise no part of it is left."""
    job = await accepted(jobs)
    claim = await jobs.claim(2.0)
    recording = tmp_path / "jobs" / f"{job.id}.recording"
    monkeypatch.setattr(os, "fsync", lambda fd: _full() if recording.exists() else None)
    ended = await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"words"))
    assert (ended.state, await content(jobs, job.id)) == (RecordState.SUCCEEDED, b"words")
    await accepted(jobs)
    claim = await jobs.claim(2.0)
    monkeypatch.setattr(os, "fsync", _full)
    ended = await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"words"))
    assert (ended.state, ended.error.code) == (RecordState.FAILED, "jobs_unavailable")
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [f"{job.id}.result"]


async def test_a_statement_that_the_disk_has_no_room_for_changes_nothing(jobs):
    """The error says so, and the statement succeeds when there is space again."""
    job = await accepted(jobs)
    async with jobs.database.transaction() as run:
        (pages,) = (await run("PRAGMA page_count"))[0]
        await run(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JobsUnavailable, match="full"):
        await accepted(jobs, digest="x" * 200_000)
    assert (await jobs.get(job.id, "")).state is RecordState.QUEUED
    async with jobs.database.transaction() as run:
        await run("PRAGMA max_page_count = 100000")
    await accepted(jobs, digest="x" * 200_000)


@pytest.mark.parametrize("ahead_s", [-1e9, -10.0, 10.0, 1e9])
async def test_a_clock_that_was_set_costs_no_result(tmp_path, monkeypatch, ahead_s):
    """After a start with another clock a result stays at most its time, and a request is sent soon."""
    jobs = opened(tmp_path)
    job = await accepted(jobs, follow_up=FollowUp("callback_url", "https://a.test/"))
    claim = await jobs.claim(2.0)
    await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"words"))
    claim = await jobs.claim_follow_up(NOBODY)
    await jobs.keep_follow_up(claim, claim.record, 5.0)
    await jobs.database.close()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    jobs = opened(tmp_path)
    await jobs.expire()
    assert await content(jobs, job.id) == b"words"
    async with jobs.database.transaction() as run:
        assert (await run("SELECT lease_until - asr_now() FROM asr_jobs"))[0][0] <= 3_600
    jobs.database.pass_time(TTL_S + 1)
    await jobs.expire()
    assert await jobs.get(job.id, "") is None
    await jobs.database.close()


async def test_a_database_is_made_with_the_first_job(tmp_path):
    """A server without jobs has no database file and does not load SQLite."""
    jobs = opened(tmp_path, Sqlite)
    assert await jobs.database.prepare() is False
    assert {path.name for path in tmp_path.iterdir()} == {"jobs", "lock"}
    await accepted(jobs)
    async with jobs.database.transaction() as run:
        settings = [(await run(f"PRAGMA {name}"))[0][0] for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]
    await jobs.database.close()
