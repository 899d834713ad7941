"""A hundred callers that leave at random moments, among as many that stay: nothing of the former remains."""

import asyncio
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from E2Etest.chaos import task_names, uploads
from E2Etest.chaos.task_names import TASKS
from E2Etest.drive import recordings
from E2Etest.drive.process import at_rest, running, until
from E2Etest.drive.wire import form

# Half a minute on two cores, and several times that on a slow day.
pytestmark = [pytest.mark.performance, pytest.mark.slow, pytest.mark.guarantee("leavers")]

PROGRAM = ("-P", str(Path(task_names.__file__)))
LEAVERS, STAYERS = 100, 100
AT_ONCE = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """With the real model, which holds memory for each of its rows."""
    with running(tmp_path_factory.mktemp("leavers") / "log", program=PROGRAM, IDLE_TIMEOUT="0") as server:
        yield server


def _tasks(server):
    """The names of the coroutines of all tasks."""
    file = server.log_path.parent / TASKS
    server.process.send_signal(signal.SIGUSR1)
    until(file.exists)
    names = file.read_text(encoding="utf-8").splitlines()
    file.unlink()
    return names


async def _leave(server, audio, chance, whole_s):
    """Send some or all, wait some time or for some bytes, and hang up: politely or with a reset."""
    body = form(audio, stream="true" if chance.random() < 0.5 else "false")
    part = None if chance.random() < 0.75 else chance.randrange(len(body))
    reader, writer = await uploads.begun(server, body, part)
    try:
        async with asyncio.timeout(chance.uniform(0, whole_s)):
            while chance.random() < 0.9 and await reader.read(64):
                pass
    except TimeoutError:
        pass
    if chance.random() < 0.5:
        writer.transport.abort()
    writer.close()


async def _crowd(server, audio, sample):
    """Leavers and stayers in any order, a few at once; what the stayers got."""
    chance, room, loop = random.Random(7), asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop()
    began_s = loop.time()
    await uploads.sent(server, form(audio))
    whole_s = loop.time() - began_s

    async def one(stays):
        async with room:
            if stays:
                return (await uploads.sent(server, form(sample))).body["text"]
            return await _leave(server, audio, random.Random(chance.random()), whole_s)

    crowd = [True] * STAYERS + [False] * LEAVERS
    chance.shuffle(crowd)
    answers = await asyncio.gather(*(one(stays) for stays in crowd))
    return [answer for answer in answers if answer is not None]


async def _open_files(server):
    """What is open once nothing closes any more: uploads and decoders of those who left end a moment after them."""
    while True:
        before = server.open_files()
        await asyncio.sleep(1.0)
        if server.open_files() == before:
            return before


async def _free_s(server, body):
    """Seconds until a caller that is worked on has left no trace in the batch and the queue."""
    _, writer = await uploads.begun(server, body)
    await asyncio.to_thread(server.wait_for, lambda health: health["queue"]["running"] > 0)
    left_s = asyncio.get_running_loop().time()
    writer.transport.abort()
    await asyncio.to_thread(server.wait_for, at_rest)
    return asyncio.get_running_loop().time() - left_s


async def test_nothing_remains_of_those_who_leave(server, sample, note):
    """Those who stay are answered; no work, task, open file, process or memory is left then, and no fault logged."""
    # More than is kept in memory of an upload: each one has a file of its own.
    audio = recordings.wav(np.repeat(np.tile(recordings.samples(), 6), 2), channels=2)
    # While the model is being loaded, too.
    await asyncio.gather(*(_leave(server, audio, random.Random(i), 0.3) for i in range(4)))
    # A first crowd: what the C library keeps of the busiest moment is kept once.
    await _crowd(server, audio, sample[0])
    await asyncio.to_thread(server.wait_for, at_rest)
    files, tasks, memory_mb = await _open_files(server), _tasks(server), server.resident_mb()

    answers = await _crowd(server, audio, sample[0])

    assert answers == [sample[1]] * STAYERS
    await asyncio.to_thread(server.wait_for, at_rest)
    assert await _open_files(server) == files
    assert _tasks(server) == tasks
    # The C library keeps some of its busiest moment, 0 to 75 MB by how many came together. Were the sound of those who
    # left kept, it would be 3 MB each.
    assert server.resident_mb() < memory_mb + 150
    log = server.log()
    assert log.count("outcome=request_cancelled") > LEAVERS / 2
    assert "Traceback" not in log
    assert "ERROR" not in log
    note(f"{LEAVERS} of {LEAVERS + STAYERS} callers disconnected, {len(answers)} were answered")


async def test_the_place_of_a_leaver_is_free_at_once(server, measured):
    """Ten times a caller leaves while its recording is decoded: its rows and its hold are gone."""
    body = form(recordings.wav(np.tile(recordings.samples(), 20)))
    worst_s = max([await _free_s(server, body) for _ in range(10)])
    measured("free_ms", 1000 * worst_s)
