"""Two hundred callers that leave at random moments, among others that stay: nothing of the former remains."""

import asyncio
import random

import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.process import running

# Half a minute on two cores, and several times that on a slow day.
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LEAVERS = 200
# As many as then count: what the C library keeps of the busiest moment is kept once.
WARM_UP = LEAVERS
STAYERS = 20
AT_ONCE = 6
BOUNDARY = b"a-boundary"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(tmp_path_factory.mktemp("disconnects") / "log", IDLE_TIMEOUT="0") as server:
        yield server


def _form(audio, stream):
    def part(name, value):
        return b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (BOUNDARY, name, value)

    fields = part(b"model", b"demo") + part(b"stream", b"true" if stream else b"false")
    return fields + part(b'file"; filename="a.wav', audio) + b"--%b--\r\n" % BOUNDARY


async def _sent(server, body):
    """An open connection behind so much of the request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body[0])}\r\n"
    writer.write(head.encode() + b"Content-Type: multipart/form-data; boundary=%b\r\n\r\n" % BOUNDARY + body[1])
    await writer.drain()
    return reader, writer


async def _leave(server, audio, chance, whole_s):
    """Send some or all, wait some time or for some bytes, and hang up: politely or with a reset."""
    body = _form(audio, stream=chance.random() < 0.5)
    upload = len(body) if chance.random() < 0.75 else chance.randrange(len(body))
    reader, writer = await _sent(server, (body, body[:upload]))
    try:
        async with asyncio.timeout(chance.uniform(0, whole_s)):
            while chance.random() < 0.9 and await reader.read(64):
                pass
    except TimeoutError:
        pass
    if chance.random() < 0.5:
        writer.transport.abort()
    writer.close()


async def _stay(server, audio):
    body = _form(audio, stream=False)
    reader, writer = await _sent(server, (body, body))
    answer = await reader.readuntil(b"}")
    writer.close()
    return answer


async def _crowd(server, audio, sample, leavers):
    """Leavers and stayers in any order, a few at once; what the stayers got."""
    chance, room, loop = random.Random(leavers), asyncio.Semaphore(AT_ONCE), asyncio.get_running_loop()
    began_s = loop.time()
    await _stay(server, audio)
    whole_s = loop.time() - began_s

    async def one(stays):
        async with room:
            if stays:
                return await _stay(server, sample)
            return await _leave(server, audio, random.Random(chance.random()), whole_s)

    crowd = [True] * STAYERS + [False] * leavers
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


def _at_rest(health):
    queue = health["queue"]
    return not any(queue[name] for name in ("live", "interactive", "bulk", "running", "audio_held_s"))


async def test_nothing_remains_of_those_who_leave(server, sample):
    """Those who stay are answered; no work, open file, process or memory is left then, and no fault was logged."""
    # More than is kept in memory of an upload: each one has a file of its own.
    audio = recordings.wav(np.repeat(np.tile(recordings.samples(), 6), 2), channels=2)
    # While the model is being loaded, too.
    await asyncio.gather(*(_leave(server, audio, random.Random(i), 0.3) for i in range(4)))
    assert sample[1].encode() in await _stay(server, sample[0])
    await _crowd(server, audio, sample[0], WARM_UP)
    await asyncio.to_thread(server.wait_for, _at_rest)
    files, memory_mb = await _open_files(server), server.resident_mb()

    answers = await _crowd(server, audio, sample[0], LEAVERS)

    assert len(answers) == STAYERS
    assert all(sample[1].encode() in answer for answer in answers)
    await asyncio.to_thread(server.wait_for, _at_rest)
    assert await _open_files(server) == files
    # The C library keeps some of its busiest moment, 0 to 75 MB by how many came together. Were the sound of those who
    # left kept, it would be 3 MB each.
    assert server.resident_mb() < memory_mb + 150
    log = server.log()
    assert log.count("outcome=request_cancelled") > LEAVERS / 2
    assert "Traceback" not in log
    assert "ERROR" not in log
