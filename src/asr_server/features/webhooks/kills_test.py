"""Requests of a server that is killed again and again while it sends them.

The server is a child process with the runner of jobs, its store and both features, but without routes and a model.
"""

import asyncio
import io
import os
import random
import signal
import time
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from asr_server.core.errors import InvalidInput
from asr_server.core.settings import ListedHosts
from asr_server.features.webhooks.webhooks import Webhooks
from asr_server.jobs.conftest import REQUEST, serving
from asr_server.jobs.database import Sqlite
from asr_server.jobs.record import FollowUp, FollowUpState, id_of
from asr_server.jobs.runner import RecordingJobs
from asr_server.jobs.runner_test import Scripted, TextJobs
from asr_server.net.outgoing import OutgoingClient, OutgoingRules
from E2Etest.receiver import KEY, receiving


@asynccontextmanager
async def _serving(directory):
    client = OutgoingClient(OutgoingRules(ListedHosts.of("127.0.0.1"), "WEBHOOK_HOSTS"))
    sender = Webhooks(client, (KEY,))
    works = RecordingJobs(Scripted()), TextJobs(Scripted())
    async with serving(Sqlite(directory, 1_000), *works, sender=sender, ttl_s=1_000, max_jobs=1_000) as jobs:
        yield jobs
    await client.close()


async def _serve(directory, url, number):
    """Accept a job and go on until killed."""
    follow_up = FollowUp("callback_url", f"{url}/{number}")
    async with _serving(directory) as jobs:
        await jobs.add(REQUEST, io.BytesIO(b"audio"), key=str(number), follow_up=follow_up)
        await asyncio.Event().wait()


def _forked(work):
    """The id of a child process that does the work."""
    if child := os.fork():
        return child
    try:
        asyncio.run(work())
    finally:
        os._exit(1)


async def _settled(directory, numbers):
    """The states of the requests of all jobs that were accepted, once none waits."""
    async with _serving(directory) as jobs:
        states = {}
        for number in numbers:
            with suppress(InvalidInput):
                job = await jobs.get(id_of("", str(number)))
                while job.follow_up.state is FollowUpState.WAITING:
                    await asyncio.sleep(0.02)
                    job = await jobs.get(job.id)
                states[number] = job.follow_up.state
        return states


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.nightly)])
def test_each_request_arrives_however_often_the_server_is_killed(tmp_path, kills):
    """Each request comes at least once and signed."""
    chance = random.Random(1)
    with receiving() as receiver:
        receiver.delay_s = 0.02
        for number in range(kills):
            child = _forked(partial(_serve, tmp_path, receiver.url, number))
            give_up_s = time.monotonic() + 20
            # The kill meets the request about its own job, or the time after it.
            while not any(path.endswith(f"/{number}") for path in receiver.paths) and time.monotonic() < give_up_s:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        states = asyncio.run(_settled(tmp_path, range(kills)))
    assert len(states) == kills
    assert set(states.values()) == {FollowUpState.DONE}
    assert {message["data"]["id"] for message in receiver.messages} == {id_of("", str(number)) for number in states}
    if kills > 10:
        assert len(receiver.paths) > len(states)  # some kills met a request under way
        print(f"{len(states)} jobs, {kills} kills, {len(receiver.paths)} requests")
