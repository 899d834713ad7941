"""Requests after the end of a job, to a scripted receiver. The store is SQLite."""

import asyncio
import io

import pytest

from asr_server.core.errors import InvalidInput
from asr_server.jobs import follow_ups
from asr_server.jobs.conftest import REQUEST, FastSqlite, ended, serving, until
from asr_server.jobs.record import FollowUp, FollowUpState, RecordState
from asr_server.jobs.runner import RecordingJobs
from asr_server.jobs.runner_test import RESULT, Scripted

DONE, WAITING, FAILED = FollowUpState.DONE, FollowUpState.WAITING, FollowUpState.FAILED
BOTH = (FollowUp("first", "https://a.test/1"), FollowUp("second", "https://a.test/2"))


class Receiver:
    """Answers the requests of one field as `script` says; None waits for ever."""

    def __init__(self, field, log, *script):
        self.field, self.log, self.script = field, log, list(script)

    def check(self, url):
        pass

    async def send(self, job, url):
        self.log.append((self.field, url, job.state))
        step = self.script.pop(0) if self.script else DONE
        if step is None:
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Seconds become hundredths of a second."""
    monkeypatch.setattr(follow_ups, "_LOOK_S", 0.02)
    monkeypatch.setattr(follow_ups, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(follow_ups, "_LONGEST_WAIT_S", 0.05)


def running(directory, processor, *kinds):
    return serving(FastSqlite(directory, 100.0), RecordingJobs(processor), follow_ups=kinds, max_jobs=30)


async def settled(jobs, identity, owner=""):
    """The states of the requests, when none waits any more."""
    for _ in range(1_000):
        record = await jobs.get(identity, owner)
        if record.state.over and WAITING not in {one.state for one in record.follow_ups}:
            return [(one.state, one.attempts) for one in record.follow_ups]
        await asyncio.sleep(0.01)
    raise AssertionError("never")


async def test_each_is_sent_until_it_is_done_and_before_the_next(tmp_path):
    """An error and a fault are followed by another attempt, and the second request waits for the first."""
    log = []
    first = Receiver("first", log, InvalidInput("no", code="url_failed"), TimeoutError(), ZeroDivisionError(), DONE)
    async with running(tmp_path, Scripted(), first, Receiver("second", log)) as jobs:
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_ups=BOTH)
        assert await settled(jobs, job.id) == [(DONE, 4), (DONE, 1)]
        assert [field for field, _, _ in log] == ["first"] * 4 + ["second"]
        assert {state for _, _, state in log} == {RecordState.SUCCEEDED}


async def test_a_request_that_is_given_up_does_not_stop_the_next(tmp_path, monkeypatch):
    """It is given up at the receiver's word, or after a number of attempts."""
    monkeypatch.setattr(follow_ups, "_MAX_ATTEMPTS", 3)
    log = []
    first = Receiver("first", log, WAITING, WAITING, WAITING, FAILED)
    async with running(
        tmp_path, Scripted(InvalidInput("no", code="invalid_audio"), RESULT), first, Receiver("second", log)
    ) as jobs:
        failed = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_ups=BOTH)
        assert await settled(jobs, failed.id) == [(FAILED, 3), (DONE, 1)]
        assert {state for _, _, state in log} == {RecordState.FAILED}
        refused = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_ups=BOTH)
        assert await settled(jobs, refused.id) == [(FAILED, 1), (DONE, 1)]


async def test_the_next_server_goes_on(tmp_path):
    """A request under way is sent once more, one that was done is not, and a server without its kind gives it up."""
    log = []
    async with running(tmp_path, Scripted(), Receiver("first", log), Receiver("second", log, None)) as jobs:
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_ups=BOTH)
        await until(lambda: len(log) == 2)
    async with running(tmp_path, Scripted(), Receiver("first", log), Receiver("second", log)) as jobs:
        assert await settled(jobs, job.id) == [(DONE, 1), (DONE, 1)]
    assert [field for field, _, _ in log] == ["first", "second", "second"]
    async with running(tmp_path, Scripted(), Receiver("first", log, None)) as jobs:
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_ups=BOTH)
        await until(lambda: len(log) == 4)
    async with running(tmp_path, Scripted(), Receiver("second", log)) as jobs:
        assert await settled(jobs, job.id) == [(FAILED, 1), (DONE, 1)]


async def test_an_owner_does_not_take_all_places(tmp_path):
    """Requests of one whose receiver does not answer leave places to others."""
    log = []
    receiver = Receiver("first", log, *[None] * 4)
    alone = BOTH[:1]
    async with running(tmp_path, Scripted(), receiver) as jobs:
        for _ in range(10):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", follow_ups=alone)
        await until(lambda: len(log) == 4 and jobs.counts.get(RecordState.SUCCEEDED) == 10)
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ben", follow_ups=alone)
        assert await settled(jobs, job.id, "ben") == [(DONE, 1)]
        assert len(log) == 5


async def test_a_cancelled_job_is_over_and_tells_so(tmp_path):
    """One that runs is stopped, one that waits is not begun, and one that is over stays as it is; removed ones tell
    nothing."""
    log, processor = [], Scripted(None, None, None)
    async with running(tmp_path, processor, Receiver("first", log)) as jobs:
        alone = BOTH[:1]
        taken = [await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_ups=alone) for _ in range(4)]
        await until(lambda: len(processor.calls) == 2)
        for job in (taken[0], taken[3]):
            assert (await jobs.cancel(job.id)).state is RecordState.CANCELLED
            assert (await ended(jobs, job.id)).state is RecordState.CANCELLED
            assert await settled(jobs, job.id) == [(DONE, 1)]
        await jobs.remove(taken[1].id)
        processor.go.set()
        done = await ended(jobs, taken[2].id)
        assert await settled(jobs, done.id) == [(DONE, 1)]
        assert (await jobs.cancel(done.id)).state is done.state is RecordState.SUCCEEDED
        last = await jobs.add(REQUEST, io.BytesIO(b"audio"))
        assert (await ended(jobs, last.id)).state is RecordState.SUCCEEDED
        assert [state for _, _, state in log] == [RecordState.CANCELLED] * 2 + [RecordState.SUCCEEDED]
        assert {(await jobs.get(job.id)).state for job in (taken[0], taken[3])} == {RecordState.CANCELLED}
    async with running(tmp_path, processor, Receiver("first", log)) as jobs:
        assert (await jobs.get(taken[0].id)).state is RecordState.CANCELLED
