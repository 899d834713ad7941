"""A recording whose speakers are lost: its text goes on, and its labels say why there are none."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest

from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.transcript import MAX_SPEAKERS, Segment
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount, Turn
from asr_server.features.speakers.recording_speakers import RecordingSpeakers
from asr_server.recordings.requests import SpeakerOptions

BLOCK = np.zeros(32_000, np.float32)
ANYBODY = SpeakerOptions()
SEGMENT = Segment(0, 1000, "so", "English", (), 0.0, 0.0)


class Client:
    """Its recordings fail at the block of that number, or with the end."""

    def __init__(self, error=None, block=0):
        self._error, self._block, self._pushed = error, block, 0

    @asynccontextmanager
    async def recording(self):
        yield self

    async def push(self, samples):
        self._pushed += 1
        if self._error and self._pushed == self._block:
            raise self._error

    async def finish(self, count):
        self.count = count
        if self._error:
            raise self._error
        return Diarization((Turn(0, 0, 1000),), (np.ones(2, np.float32),))


async def names(prints):
    return ["Ann"]


async def _labels(client, options=ANYBODY):
    speakers = RecordingSpeakers(client, options, names)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        running = group.create_task(speakers.run())
        for _ in range(200):  # more than may wait
            await speakers.push(BLOCK)
        await speakers.end()
        try:
            return await speakers.mapped([SEGMENT])
        finally:
            running.cancel()


async def test_segments_get_the_names_of_voices():
    assert [segment.speaker for segment in await _labels(Client())] == ["Ann"]


@pytest.mark.parametrize("block", [1, 100, 0])
@pytest.mark.parametrize("error", [SpeakersUnavailable("lost"), ValueError("a fault of the server")])
async def test_blocks_are_taken_after_a_failure_and_the_labels_raise_it(error, block):
    """Otherwise the text of the recording would wait for blocks that nobody takes."""
    with pytest.raises(ExceptionGroup) as failures:
        await _labels(Client(error, block))
    assert failures.value.exceptions == (error,)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (SpeakerOptions(), SpeakerCount(1, MAX_SPEAKERS)),
        (SpeakerOptions(2, 3), SpeakerCount(2, 3)),
        (SpeakerOptions(2, None), SpeakerCount(2, MAX_SPEAKERS)),
    ],
)
async def test_as_many_people_are_looked_for_as_the_caller_says(options, count):
    client = Client()
    await _labels(client, options)
    assert client.count == count
