"""Jobs of the engine thread seen from the event loop."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from asr_server.core.errors import DeadlineExceeded, TranscriptionFailed
from asr_server.engine.client import EngineClient, until
from asr_server.engine.protocol import Finish, Hypothesis, Tokens, Utterance
from asr_server.schedule.job import Priority, RequestClock
from asr_server.schedule.ports import RowDelta, RowDone, RowFailed
from asr_server.schedule.thread import EngineThread

SAID = Hypothesis("said twice", "English", (1, 2), (-0.1, -0.1), Finish.END, 1, 1, 2)
NOW = Priority.INTERACTIVE


class Scripted:
    """A batch that gives every row two deltas with text, one without, and then its end."""

    loaded, free_slots, urgent_slots = True, 8, 8

    def __init__(self, error=None):
        self.error, self.keys = error, []

    def load(self): ...

    def unload(self): ...

    def admit(self, key, item, urgent=False):
        self.keys.append(key)

    def step(self, begin_s=None):
        keys, self.keys = self.keys, []
        for key in keys:
            yield RowDelta(key, Tokens((1,), (-0.1,), "said "))
            yield RowDelta(key, Tokens((), ()))
            yield RowDelta(key, Tokens((2,), (-0.1,), "twice"))
            yield RowFailed(key, self.error) if self.error else RowDone(key, SAID)

    def drop(self, key):
        self.keys = [other for other in self.keys if other != key]


def _audio(seconds=1.0):
    return np.zeros(int(16_000 * seconds), np.float32)


async def test_a_stream_gives_its_text_in_order_and_then_its_result():
    """Deltas without text are left out; the job is queued by the call itself, with its length in seconds of audio."""
    thread = EngineThread(Scripted(), idle_timeout_s=0, start=False)
    stream = EngineClient(thread).stream(Utterance(_audio(2.5), stream=True), priority=NOW)
    assert thread.snapshot().waiting_s == 2.5
    assert not stream.begun.is_set()
    thread.turn()
    assert [text async for text in stream] == ["said ", "twice"]
    assert stream.begun.is_set()
    assert (await stream.result()).hypothesis == SAID


async def test_a_transcription_says_where_its_time_went():
    """Waiting and running apart, in seconds of the thread's own clock."""
    clock = iter(range(100))
    thread = EngineThread(Scripted(), idle_timeout_s=0, start=False, clock=lambda: next(clock))
    task = asyncio.create_task(EngineClient(thread).transcribe(Utterance(_audio()), priority=NOW))
    await asyncio.sleep(0)
    thread.turn()
    done = await task
    assert done.hypothesis == SAID
    assert done.queue_s >= 1
    assert done.infer_s >= 1
    assert done.load_s == 0


@pytest.mark.parametrize("leaves", [False, True])
async def test_its_audio_is_freed_with_it(leaves):
    """The audio is freed at once, by the count of its references: the collector comes minutes later."""
    thread = EngineThread(Scripted(), idle_timeout_s=0, start=False)
    audio = _audio()
    kept = weakref.ref(audio)
    gc.collect()
    gc.disable()
    try:
        stream = EngineClient(thread).stream(Utterance(audio, stream=True), priority=NOW)
        del audio
        if leaves:
            stream.cancel()
            await asyncio.sleep(0)
            thread.turn()
        else:
            thread.turn()
            assert [text async for text in stream] == ["said ", "twice"]
            assert (await stream.result()).hypothesis == SAID
        await asyncio.sleep(0)
        del stream
        assert kept() is None
    finally:
        gc.enable()


async def test_cancelling_the_task_cancels_the_job():
    """The thread never starts it."""
    batch = Scripted()
    thread = EngineThread(batch, idle_timeout_s=0, start=False)
    task = asyncio.create_task(EngineClient(thread).transcribe(Utterance(_audio()), priority=NOW))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert thread.snapshot().waiting_s == 0
    thread.turn()
    assert not batch.keys


async def test_an_error_that_nobody_asks_for_is_not_reported():
    """A cancelled stream whose job had failed already leaves nothing to the event loop's handler of lost errors."""
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    thread = EngineThread(Scripted(TranscriptionFailed("broken")), idle_timeout_s=0, start=False)
    stream = EngineClient(thread).stream(Utterance(_audio(), stream=True), priority=NOW)
    thread.turn()
    assert [text async for text in stream] == ["said ", "twice"]
    stream.cancel()
    del stream
    gc.collect()
    await asyncio.sleep(0)
    assert not reported


async def test_the_deadline_ends_a_job_though_the_engine_does_not_move():
    """A reader of the text gets `TimeoutError`; who waits for the answer has the error, and the job never runs."""
    batch = Scripted()
    thread = EngineThread(batch, idle_timeout_s=0, start=False)
    how = {"priority": NOW, "deadline_s": thread.request_clock.now_s() + 0.01}
    stream = EngineClient(thread).stream(Utterance(_audio()), **how)
    with pytest.raises(TimeoutError):
        await anext(stream)
    stream.cancel()
    with pytest.raises(DeadlineExceeded):
        await EngineClient(thread).transcribe(Utterance(_audio()), **how)
    batch.admit = lambda *_: pytest.fail("late work runs")
    thread.turn()


async def test_a_limit_passes_by_its_clock_alone():
    """The limit does not pass while a model is loaded, and a block that is left in time is not ended."""
    now_s = 100.0
    clock = RequestClock(clock=lambda: now_s)
    with clock.loading():
        now_s += 5.0
        async with until(clock, clock.now_s() + 0.01):
            await asyncio.sleep(0.15)

    async def wait():
        async with until(clock, clock.now_s() + 0.05):
            await asyncio.sleep(30)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    now_s += 1.0
    with pytest.raises(TimeoutError):
        await waiting
