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


def stream(*answers):
    """A stream whose requests have these contents as answers in turn."""
    request = AsyncMock(side_effect=[Message(answer, b"") for answer in answers])
    return SimpleNamespace(request=request, process=SimpleNamespace(end=AsyncMock()), close=None)


@pytest.mark.parametrize(
    ("answer", "reason", "ends"),
    [({"error": "OSError"}, "this recording", 0), ({"unusable": "it is damaged"}, r"^SPEAKERS: it is damaged\.$", 1)],
)
async def test_a_failure_is_told_and_ends_a_process_without_models(answer, reason, ends):
    failing = stream(answer)
    with pytest.raises(SpeakersUnavailable, match=reason):
        await RecordingDiarization(failing).push(BLOCK)
    assert failing.process.end.await_count == ends


async def test_more_work_may_take_longer():
    requests = stream(*[{}] * 91)
    recording = RecordingDiarization(requests)
    await recording.push(np.tile(BLOCK, 90))
    await recording.ask("finish")
    work_s = [call.kwargs["work_s"] for call in requests.request.await_args_list]
    assert work_s == [*[10.0] * 90, pytest.approx(1.8)]


async def test_turns_replace_those_of_the_request_before_in_their_time():
    first = {"turns": [[0, 0, 1_000], [0, 1_000, 2_000]], "voices": None, "settled_ms": 500}
    session = LiveSpeakers(stream(first, {**first, "turns": [[1, 500, 4_000]]}))
    assert await session.push(np.tile(BLOCK, 2)) == (Turn(0, 0, 500), Turn(1, 500, 4_000))
