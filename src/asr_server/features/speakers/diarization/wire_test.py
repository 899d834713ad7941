"""Messages between the server and the process that distinguishes speakers."""

import json

import numpy as np
import pytest

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization import wire
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.processes import messages


def received(message):
    """The message as the other side reads it."""
    text_bytes, data_bytes = messages.sizes(message[: messages.HEADER.size])
    body = message[messages.HEADER.size :]
    assert len(body) == text_bytes + data_bytes
    return messages.Message(json.loads(body[:text_bytes]), body[text_bytes:])


@pytest.mark.parametrize("speakers", [(), (3,), (0, 7)])
def test_turns_and_voices_arrive_as_they_were_sent(speakers):
    """A message with no voices differs from one without a change."""
    sent = {number: np.random.default_rng(number).normal(size=256).astype(np.float32) for number in speakers}
    turns = (Turn(0, 5, 7_200_000), Turn(39, 6, 7))
    answer = received(wire.answer(turns, sent))
    found = wire.voices(answer)
    assert (wire.turns(answer), list(found)) == (turns, list(speakers))
    assert all(np.array_equal(found[number], sent[number]) for number in speakers)
    assert wire.voices(received(wire.answer(turns))) is None


def test_the_longest_recording_fits():
    """Two hours in which the speaker changes 30 times a second: of that, as much as a hundredth of the limit takes."""
    turns = tuple(Turn(MAX_SPEAKERS - 1, 7_000_000 + place, 7_000_001) for place in range(2_160))
    assert len(wire.answer(turns, {})) <= messages.MAX_JSON_BYTES / 100
