"""Recordings and sessions in the real process: several at once, cancelled, lost, idle, closed. With real people."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.idle import end_expired
from asr_server.features.speakers.diarization.client import SpeakerClient
from asr_server.features.speakers.diarization.model_source import EMBEDDED
from asr_server.features.speakers.diarization.turns import SpeakerCount, Turn
from asr_server.processes.conftest import assert_confined

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[SpeakerClient]:
    client = SpeakerClient(EMBEDDED, idle_timeout_s=0.001)
    yield client
    await client.close()


async def labels(client: SpeakerClient, sound: np.ndarray) -> list[Turn]:
    """The turns of a live session, in the end."""
    session, turns = await client.live(), []
    for begin in range(0, len(sound), 70_000):  # more than a request may have
        settled_ms = session.settled_ms
        changed = await session.push(sound[begin : begin + 70_000])
        if changed:
            turns = [turn for turn in turns if turn.end_ms <= settled_ms] + list(changed)
    session.close()
    return turns


@pytest.mark.nightly
async def test_recordings_and_sessions_beside_each_other(client: SpeakerClient, conversation: np.ndarray) -> None:
    """A recording or session gets the turns that are its own, in any blocks, of as many people as are asked for."""
    sound = conversation[:210_000].copy()
    sound[160_000:190_000] += conversation[220_000:250_000]  # both speak
    whole, one, live = await asyncio.gather(
        client.diarize(sound), client.diarize(sound[:80_000], SpeakerCount(1, 1)), labels(client, sound)
    )
    assert {turn.speaker for turn in whole.turns} == {turn.speaker for turn in live} == {0, 1}
    assert len(whole.voice_prints) == 2
    assert {turn.speaker for turn in one.turns} == {0}
    assert live == sorted(live, key=lambda turn: turn.start_ms)
    for turns in (whole.turns, live):
        first, second = [(turn.start_ms, turn.end_ms) for turn in turns if turn.speaker == 1]
        assert first == (pytest.approx(4_700, abs=200), pytest.approx(7_300, abs=200))
        assert second == (pytest.approx(10_000, abs=400), pytest.approx(11_800, abs=400))


@pytest.mark.slow("starts a process that loads models")
async def test_the_process_is_confined(client: SpeakerClient, conversation: np.ndarray) -> None:
    """The process sees only the files and variables that it needs."""
    await client.diarize(conversation[:8_000])
    assert_confined(client.pid)
    process = Path(f"/proc/{client.pid}")
    if os.geteuid() == 0:
        assert sorted(os.listdir(process / "fd")) == ["0", "1", "2"]
        assert b"PATH" not in (process / "environ").read_bytes().replace(b"PYTHONPATH", b"")


async def test_what_a_cancelled_recording_leaves_is_forgotten(client: SpeakerClient, conversation: np.ndarray) -> None:
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
async def test_a_lost_process_is_replaced_and_an_idle_one_is_ended(
    client: SpeakerClient, conversation: np.ndarray
) -> None:
    """All of them are told so, and recordings that come next, also at once, have another process, which ends when it is
    idle. A session holds its process until it is closed, and may be closed twice."""
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
