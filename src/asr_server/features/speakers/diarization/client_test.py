"""Recordings and sessions in the real process: several at once, cancelled, lost, idle, closed. With real people."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import pytest_asyncio

from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.idle import end_expired
from asr_server.features.speakers.diarization.client import SpeakerClient
from asr_server.features.speakers.diarization.model_source import EMBEDDED
from asr_server.features.speakers.diarization.turns import SpeakerCount
from asr_server.processes.conftest import assert_confined

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client():
    client = SpeakerClient(EMBEDDED, idle_timeout_s=0.001)
    yield client
    await client.close()


@pytest.mark.slow("starts a process that loads models")
async def test_the_process_is_confined(client, conversation):
    await client.diarize(conversation[:8_000])
    assert_confined(client.pid)
    process = Path(f"/proc/{client.pid}")
    if os.geteuid() == 0:
        assert sorted(os.listdir(process / "fd")) == ["0", "1", "2"]
        assert b"PATH" not in (process / "environ").read_bytes().replace(b"PYTHONPATH", b"")


async def test_what_a_cancelled_recording_leaves_is_forgotten(client, conversation):
    """Wherever it is cancelled, the others go on, and nothing keeps the process in use."""
    before = await client.diarize(conversation[:40_000])
    for steps in range(1, 12):
        task = asyncio.create_task(client.diarize(conversation))
        for _ in range(steps):
            await asyncio.sleep(0.001 * steps)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await client.diarize(conversation[:40_000])).turns == before.turns
    assert client.idle.remaining_s is not None  # nothing holds it


@pytest.mark.slow("starts a process that loads models")
async def test_a_lost_process_is_replaced_and_an_idle_one_is_ended(client, conversation):
    """What comes next, also at once, has another process. A session holds its process until it is closed, and may be
    closed twice."""
    session, pid = await client.live(), client.pid
    await asyncio.sleep(0.01)
    await end_expired([client])
    assert client.pid == pid is not None
    async with client.recording() as recording:
        await recording.push(conversation[:32_000])
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SpeakersUnavailable):
            await session.push(conversation[:32_000])
        with pytest.raises(SpeakersUnavailable):
            await recording.finish(SpeakerCount())
    session.close()
    session.close()
    found = await asyncio.gather(*(client.diarize(conversation[:40_000]) for _ in range(2)))
    assert found[0].turns == found[1].turns != ()
    await asyncio.sleep(0.01)
    await end_expired([client])
    assert client.pid is None
