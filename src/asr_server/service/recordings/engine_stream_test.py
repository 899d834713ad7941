"""A job on its way back to the event loop."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from asr_server.engine.protocol import Utterance
from asr_server.scheduling.job import Job
from asr_server.scheduling.ports import RowDelta, RowDone
from asr_server.scheduling.thread import EngineThread
from asr_server.service.recordings.engine_stream import EngineStream


class Scripted:
    """A batch that gives every row a delta and then its end."""

    loaded, room = True, 8

    def __init__(self):
        self._keys = []

    def load(self):
        pass

    def unload(self):
        pass

    def admit(self, key, item):
        self._keys.append(key)

    def step(self):
        keys, self._keys = self._keys, []
        for key in keys:
            yield RowDelta(key, _Tokens("said"))
            yield RowDone(key, "said")

    def drop(self, key):
        self._keys = [other for other in self._keys if other != key]


class _Tokens:
    def __init__(self, text):
        self.text = text


@pytest.mark.parametrize("leaves", [False, True])
async def test_its_audio_is_freed_with_it(leaves):
    """At once, by the count of its references: the collector comes when much else has piled up, minutes later."""
    engine = EngineThread(Scripted(), idle_timeout_s=0, start=False)
    audio = np.zeros(16_000, np.float32)
    kept = weakref.ref(audio)
    gc.collect()
    gc.disable()
    try:
        feed = EngineStream(engine, Job(Utterance(audio)))
        del audio
        if leaves:
            feed.cancel()
            await asyncio.sleep(0)
            engine.turn()
        else:
            engine.turn()
            assert [text async for text in feed.pieces(float("inf"))] == ["said"]
            assert await feed.result() == "said"
        await asyncio.sleep(0)
        del feed
        assert kept() is None
    finally:
        gc.enable()
