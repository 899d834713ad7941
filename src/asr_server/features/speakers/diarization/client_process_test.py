"""The errors of a recording that fails, and of models that cannot be loaded. The process is a script."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

from asr_server.core.errors import SpeakersUnavailable
from asr_server.features.speakers.diarization.client import SpeakerProcess
from asr_server.features.speakers.diarization.wire import SpeakerRequest
from asr_server.processes import worker_process

# Analysis 13 fails, and there are no models for 14.
SCRIPT = """
import json, struct, sys
while header := sys.stdin.buffer.read(8):
    sizes = struct.unpack("<II", header)
    request = json.loads(sys.stdin.buffer.read(sizes[0]))
    sys.stdin.buffer.read(sizes[1])
    answers = {13: {"error": "OSError"}, 14: {"unusable": "a file is damaged"}}
    text = json.dumps(answers.get(request["analysis"], {})).encode()
    sys.stdout.buffer.write(struct.pack("<II", len(text), 0) + text)
    sys.stdout.buffer.flush()
"""


@pytest.fixture
async def running():
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", SCRIPT), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    running = SpeakerProcess(child)
    yield running
    await running.end()


async def test_the_failure_of_a_recording_is_its_own(running):
    """The process goes on."""
    with pytest.raises(SpeakersUnavailable, match="this recording"):
        await running.ask(SpeakerRequest("push", 13))
    assert (await running.ask(SpeakerRequest("push", 2))).content == {}


async def test_models_that_cannot_be_loaded(running):
    """The reason is told, and the process has ended."""
    with pytest.raises(SpeakersUnavailable, match=r"^SPEAKERS: a file is damaged\.$"):
        await running.ask(SpeakerRequest("push", 14))
    assert not running.is_running


@pytest.mark.parametrize("work", [{"samples": np.zeros(32_000, np.float32)}, {"ends_s": 7_200}])
async def test_more_work_may_take_longer(running, monkeypatch, work):
    """Two seconds of sound, or the end of two hours, where a request without either has no time at all."""
    await running.ask(SpeakerRequest("push", 1))
    monkeypatch.setattr(worker_process, "_LATE_S", 0.0)
    assert await running.ask(SpeakerRequest("push", 1), **work)
    with pytest.raises(SpeakersUnavailable):
        await running.ask(SpeakerRequest("push", 1))
