"""Requests after the end of a job, to a scripted receiver. The store is SQLite."""

import asyncio
import io

import pytest

from asr_server.core.conftest import until
from asr_server.core.errors import InvalidInput
from asr_server.jobs import follow_ups, runner
from asr_server.jobs.conftest import REQUEST, FastSqlite, Work, serving
from asr_server.jobs.record import FollowUp, FollowUpState, RecordState

DONE, WAITING, FAILED = FollowUpState.DONE, FollowUpState.WAITING, FollowUpState.FAILED
CALLBACK = FollowUp("callback_url", "https://a.test/1")


class Receiver:
    """Answers the requests as `script` says, and then with DONE; None waits for ever."""

    field = "callback_url"

    def __init__(self, *script):
        self.log, self.script = [], list(script)

    def check(self, url):
        pass

    async def send(self, job, url):
        self.log.append((url, job.state))
        step = self.script.pop(0) if self.script else DONE
        if step is None:
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return step


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Seconds become hundredths of a second."""
    monkeypatch.setattr(runner, "_LOOK_S", 0.02)
    monkeypatch.setattr(follow_ups, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(follow_ups, "_LONGEST_WAIT_S", 0.05)


def running(directory, sender, *script):
    return serving(FastSqlite(directory, 100.0), Work(*script), sender=sender, max_jobs=30)


async def settled(jobs, identity, owner=""):
    """The state of the request when it does not wait any more, and its attempts."""
    record = None
    while record is None or not record.state.over or record.follow_up.state is WAITING:
        record = await jobs.get(identity, owner)
        await asyncio.sleep(0.01)
    return record.follow_up.state, record.follow_up.attempts


async def test_each_is_sent_until_it_is_done(tmp_path):
    """An error and a fault are followed by another attempt."""
    receiver = Receiver(InvalidInput("no", code="url_failed"), TimeoutError(), ZeroDivisionError(), DONE)
    async with running(tmp_path, receiver) as jobs:
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_up=CALLBACK)
        assert await settled(jobs, job.id) == (DONE, 4)
        assert receiver.log == [(CALLBACK.url, RecordState.SUCCEEDED)] * 4


async def test_a_request_is_given_up(tmp_path, monkeypatch):
    """At the receiver's word, or after a number of attempts."""
    monkeypatch.setattr(follow_ups, "_MAX_ATTEMPTS", 3)
    receiver = Receiver(WAITING, WAITING, WAITING, FAILED)
    async with running(tmp_path, receiver, InvalidInput("no", code="invalid_audio")) as jobs:
        failed = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_up=CALLBACK)
        assert await settled(jobs, failed.id) == (FAILED, 3)
        assert {state for _, state in receiver.log} == {RecordState.FAILED}
        refused = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_up=CALLBACK)
        assert await settled(jobs, refused.id) == (FAILED, 1)


async def test_the_next_server_goes_on(tmp_path):
    """A request under way is sent once more, and a server that sends none gives it up."""
    first, second, third = Receiver(None), Receiver(), Receiver(None)
    async with running(tmp_path, first) as jobs:
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_up=CALLBACK)
        await until(lambda: first.log)
    async with running(tmp_path, second) as jobs:
        assert await settled(jobs, job.id) == (DONE, 1)
    assert len(second.log) == 1
    async with running(tmp_path, third) as jobs:
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), follow_up=CALLBACK)
        await until(lambda: third.log)
    async with running(tmp_path, None) as jobs:
        assert await settled(jobs, job.id) == (FAILED, 1)


async def test_an_owner_does_not_take_all_places(tmp_path):
    """Requests of one whose receiver does not answer leave places to others."""
    receiver = Receiver(*[None] * 4)
    async with running(tmp_path, receiver) as jobs:
        for _ in range(10):
            await jobs.add(REQUEST, io.BytesIO(b"audio"), "ann", follow_up=CALLBACK)
        await until(lambda: len(receiver.log) == 4 and jobs.counts.get(RecordState.SUCCEEDED) == 10)
        job = await jobs.add(REQUEST, io.BytesIO(b"audio"), "ben", follow_up=CALLBACK)
        assert await settled(jobs, job.id, "ben") == (DONE, 1)
        assert len(receiver.log) == 5
