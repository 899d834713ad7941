"""Errors of the process, the time that an answer may take, and turns over several requests."""

from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest

from asr_server.core.errors import SpeakersUnavailable
from asr_server.features.speakers.diarization.client import LiveSpeakers, RecordingDiarization
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.processes.messages import Message

BLOCK = np.zeros(32_000, np.float32)


class Stream:
    """Answers with these contents in turn. `work_s`: the time that each request has for its work."""

    def __init__(self, *answers):
        self.answers, self.work_s = list(answers), []
        self.process, self.close = SimpleNamespace(end=AsyncMock()), lambda: None

    async def request(self, content, data, *, is_live, work_s):
        self.work_s.append(work_s)
        return Message(self.answers.pop(0), b"")


async def test_the_failure_of_a_recording_is_reported():
    with pytest.raises(SpeakersUnavailable, match="this recording"):
        await RecordingDiarization(Stream({"error": "OSError"})).push(BLOCK)


async def test_models_that_cannot_be_loaded():
    """The reason is told, and the process has ended."""
    stream = Stream({"unusable": "a file is damaged"})
    with pytest.raises(SpeakersUnavailable, match=r"^SPEAKERS: a file is damaged\.$"):
        await RecordingDiarization(stream).push(BLOCK)
    stream.process.end.assert_awaited_once()


async def test_more_work_may_take_longer():
    """Sound, and the end of three minutes."""
    stream = Stream(*[{}] * 91)
    recording = RecordingDiarization(stream)
    await recording.push(np.tile(BLOCK, 90))
    await recording.ask("finish")
    assert stream.work_s == [*[10.0] * 90, pytest.approx(1.8)]


async def test_turns_replace_those_of_the_request_before_in_their_time():
    first = {"turns": [[0, 0, 1_000], [0, 1_000, 2_000]], "voices": None, "settled_ms": 500}
    session = LiveSpeakers(Stream(first, {**first, "turns": [[1, 500, 4_000]]}))
    assert await session.push(np.tile(BLOCK, 2)) == (Turn(0, 0, 500), Turn(1, 500, 4_000))
