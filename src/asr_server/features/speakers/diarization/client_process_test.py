"""The errors of a recording that fails, and of models that cannot be loaded. The process is a script."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.idle import IdleTimer
from asr_server.features.speakers.diarization.client import RecordingDiarization
from asr_server.processes import worker_process
from asr_server.processes.worker_process import Work, WorkerProcess, WorkerStream

# Analysis 13 fails, and there are no models for 14.
SCRIPT = """
import json, struct, sys
while header := sys.stdin.buffer.read(8):
    sizes = struct.unpack("<II", header)
    request = json.loads(sys.stdin.buffer.read(sizes[0]))
    sys.stdin.buffer.read(sizes[1])
    answers = {13: {"error": "OSError"}, 14: {"unusable": "a file is damaged"}}
    text = json.dumps(answers.get(request["stream"], {})).encode()
    sys.stdout.buffer.write(struct.pack("<II", len(text), 0) + text)
    sys.stdout.buffer.flush()
"""


@pytest.fixture
async def running():
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", SCRIPT), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    running = WorkerProcess(Work("", "tells speakers apart", SpeakersUnavailable), child)
    yield running
    await running.end()


def recording(running, number):
    return RecordingDiarization(WorkerStream(running, number, IdleTimer(0)))


async def test_the_failure_of_a_recording_is_its_own(running):
    """The process goes on."""
    with pytest.raises(SpeakersUnavailable, match="this recording"):
        await recording(running, 13).ask("push")
    assert (await recording(running, 2).ask("push")).content == {}


async def test_models_that_cannot_be_loaded(running):
    """The reason is told, and the process has ended."""
    with pytest.raises(SpeakersUnavailable, match=r"^SPEAKERS: a file is damaged\.$"):
        await recording(running, 14).ask("push")
    assert not running.is_running


@pytest.mark.parametrize("action", ["push", "finish"])
async def test_more_work_may_take_longer(running, monkeypatch, action):
    """Sound, or the end of three minutes, where a request without either has no time at all."""
    analysis = recording(running, 1)
    for _ in range(90):
        await analysis.push(np.zeros(32_000, np.float32))
    monkeypatch.setattr(worker_process, "_LATE_S", 0.0)
    assert await analysis.ask(action, np.zeros(32_000, np.float32) if action == "push" else None)
    with pytest.raises(SpeakersUnavailable):
        await analysis.ask("push")
