"""Live sessions with an engine that recognises words in any order: nothing is lost, moved or mixed."""

import asyncio
import json
from itertools import product

import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import connect

from E2Etest.drive import recordings
from E2Etest.drive.session import data, finals, pieces

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
    """All at once, each says an English and a Chinese sentence in a sequence that no other session has."""
    chinese = next(clip for clip in recordings.clips() if clip.language == "Chinese")
    said = (recordings.sample()[1], chinese.text)
    sounds = (recordings.samples(), soundfile.read(chinese.path, dtype="int16")[0])
    orders = [order for length in (1, 2, 3, 4) for order in product((0, 1), repeat=length)][-SESSIONS:]
    pause = np.zeros(14_400, np.int16)
    bodies = [data(np.concatenate([*(sounds[which] for which in order), pause])) for order in orders]
    ready = asyncio.Barrier(SESSIONS)
    found = await asyncio.gather(*(_heard(live_server, body, ready) for body in bodies))
    expected = ["".join(said[which] for which in order) for order in orders]
    assert [_plain(text) for text in found] == [_plain(text) for text in expected]


def _plain(text):
    return text.replace(" ", "")
