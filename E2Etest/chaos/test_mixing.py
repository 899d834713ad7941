"""Two hundred live sessions at once, each with words of its own: nobody hears what another one said."""

import asyncio
import itertools
import json
import random

import numpy as np
import pytest
from websockets.asyncio.client import connect

from E2Etest.drive import recordings
from E2Etest.drive.session import data, finals, pcm_of, pieces

pytestmark = [
    pytest.mark.websocket,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("mixing"),
    pytest.mark.timeout(300),
]

SESSIONS = 200
RECORDINGS = 16
PIECE_BYTES = 16_000
_PAUSE = np.zeros(14_400, np.int16)


async def _spoken(server, body, ready=None):
    """The words of a session; with `ready`, once all sessions are open."""
    url = server.base.replace("http", "ws", 1) + "/ws/transcribe"
    async with connect(url, max_size=None, compression=None, open_timeout=60) as session:
        await session.recv()
        if ready is not None:
            await ready.wait()
        for piece in pieces(body, PIECE_BYTES):
            await session.send(piece)
            await asyncio.sleep(0)
        await session.send(json.dumps({"action": "flush"}))
        messages = []
        while not messages or messages[-1].get("ending") != "flush":
            messages.append(json.loads(await session.recv()))
        return " ".join(text for text, *_ in finals(messages))


async def test_two_hundred_sessions_hear_each_its_own_words(loaded, measured, note):
    """Each says two of the recordings, no two sessions the same two, and gets the words that it gets alone: where
    words that were committed early decided otherwise, still nearer to its own than to any other's."""
    clips = [clip for clip in recordings.clips() if clip.kind in {"digits", "phrase"}]
    spoken = {
        clip.path: np.concatenate([pcm_of(clip.path), _PAUSE])
        for clip in sorted(clips, key=lambda clip: clip.seconds)[:RECORDINGS]
    }
    apart = {path: await _spoken(loaded, data(pcm)) for path, pcm in spoken.items()}
    pairs = random.Random(5).sample(list(itertools.permutations(spoken, 2)), SESSIONS)
    expected = [f"{apart[first]} {apart[second]}" for first, second in pairs]
    bodies = [data(np.concatenate([spoken[first], spoken[second]])) for first, second in pairs]

    ready = asyncio.Barrier(SESSIONS)
    found = await asyncio.gather(*(_spoken(loaded, body, ready) for body in bodies))

    # What the model hears in a recording may depend on the one before it.
    for number in [number for number in range(SESSIONS) if found[number] != expected[number]]:
        expected[number] = await _spoken(loaded, bodies[number])
    # Two recordings may be heard as the same words.
    assert len(set(expected)) > 0.95 * SESSIONS
    others = [number for number in range(SESSIONS) if found[number] != expected[number]]
    crossed = 0
    for number in others:
        errors = [recordings.word_errors(whose.split(), found[number].split()) for whose in expected]
        crossed += errors[number] > min(errors)
    measured("crossed", crossed)
    assert len(others) < SESSIONS / 10
    note(f"{SESSIONS - len(others)} of {SESSIONS} sessions receive exactly the words that they receive alone")
