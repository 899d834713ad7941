"""Live sessions with an engine that recognises words in any order: nothing is lost, moved or mixed."""

import asyncio
import json
import random

import numpy as np
import pytest
from websockets.asyncio.client import connect

from E2Etest.contract.word_spotter import known_words
from E2Etest.live.session import data, finals, pieces, stream

pytestmark = [pytest.mark.websocket, pytest.mark.demo_server]

SESSIONS = 24
PIECE_BYTES = 16_000


async def _heard(server, body, ready):
    url = server.base.replace("http", "ws", 1) + "/ws/transcribe?endpointing=manual"
    async with connect(url, max_size=None, compression=None, open_timeout=60) as session:
        await session.recv()
        await ready.wait()
        for piece in pieces(body, PIECE_BYTES):
            await session.send(piece)
            await asyncio.sleep(0)
        await session.send(json.dumps({"action": "flush"}))
        messages = []
        while not messages or messages[-1].get("ending") != "flush":
            messages.append(json.loads(await session.recv()))
        return " ".join(text for text, *_ in finals(messages))


async def test_many_sessions_get_each_their_own_words(live_server):
    """All at once, each says the words of the recording in an order of its own.

    Without detection: words that are put together so are no speech to the voice detector.
    """
    chance = random.Random(5)
    orders = [chance.sample(known_words(), len(known_words())) for _ in range(SESSIONS)]
    pause = np.zeros(14_400, np.int16)
    bodies = [data(np.concatenate([*(word.pcm for word in order), pause])) for order in orders]
    ready = asyncio.Barrier(SESSIONS)
    found = await asyncio.gather(*(_heard(live_server, body, ready) for body in bodies))
    assert found == [" ".join(word.text for word in order) for order in orders]


def _cuts(body, seed):
    rng, at, parts = random.Random(seed), 0, []
    while at < len(body):
        size = rng.choice([1, 3, 641, 1_024, 5_001, 14_400, 65_536])
        parts.append(body[at : at + size])
        at += size
    return parts


@pytest.mark.parametrize("ways", [4, pytest.param(60, marks=pytest.mark.nightly)])
def test_ways_to_cut_a_recording_give_the_same_finals(live_server, talk, ways):
    """Bytes, texts and times of the finals are identical, however the network cuts."""
    whole = finals(stream(live_server, [data(talk)]))
    assert len(whole) == 2
    for seed in range(ways):
        assert finals(stream(live_server, _cuts(data(talk), seed))) == whole
