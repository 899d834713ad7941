"""Jobs of the engine thread seen from the event loop, and the drafts of a smaller model for them."""

import asyncio
import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.errors import TranscriptionFailed
from asr_server.engine.client import EngineClient, ModelDrafts
from asr_server.engine.protocol import DEFAULT_TRAITS, EngineTraits, Finish, Hypothesis, Tokens, Utterance, Written
from asr_server.schedule.conftest import Scripted
from asr_server.schedule.job import Priority
from asr_server.schedule.model import RowDelta, RowDone, RowFailed
from asr_server.schedule.thread import EngineThread

SAID = Hypothesis("said twice", "English", (1, 2), (-0.1, -0.1), Finish.END, 1, 1, 2)
NOW = Priority.INTERACTIVE


class Batch(Scripted):
    """A batch that gives every row two deltas with text, one without, and then its end."""

    loaded = True

    def __init__(self, said=SAID, error=None):
        super().__init__(8)
        self.said, self.error = said, error

    def step(self, begin_s=None):
        for key in list(self.rows):
            del self.rows[key]
            yield RowDelta(key, Tokens((1,), (-0.1,), "said "))
            yield RowDelta(key, Tokens((), ()))
            yield RowDelta(key, Tokens((2,), (-0.1,), "twice"))
            yield RowFailed(key, self.error) if self.error else RowDone(key, self.said)


class Pair:
    """A large model and a small one on one thread; `ask` runs turns until the answer is there."""

    def __init__(self, error=None, traits=DEFAULT_TRAITS):
        self.large = Batch(replace(SAID, passes=1))
        self.small = Batch(replace(SAID, text="said once"), error)
        self.thread = EngineThread(self.large, others={"small": self.small}, idle_timeout_s=0, start=False)
        self.drafting = ModelDrafts(EngineClient(self.thread, traits, "small"))
        self.client = EngineClient(self.thread, drafting=self.drafting)

    async def ask(self, **values):
        task = asyncio.create_task(self.client.transcribe(Utterance(_audio(), **values), priority=NOW))
        while not task.done():
            await asyncio.sleep(0)
            self.thread.turn()
        return await task


def _audio(seconds=1.0):
    return np.zeros(int(16_000 * seconds), np.float32)


async def test_a_stream_gives_its_text_in_order_and_then_its_result():
    """Deltas without text are left out. Waiting and running are told apart, by the clock of the thread."""
    clock = iter(range(100))
    thread = EngineThread(Batch(), idle_timeout_s=0, start=False, clock=lambda: next(clock))
    stream = EngineClient(thread).stream(Utterance(_audio(2.5), stream=True), priority=NOW)
    assert thread.snapshot().waiting_s == 2.5
    assert not stream.begun.is_set()
    thread.turn()
    assert [text async for text in stream] == ["said ", "twice"]
    assert stream.begun.is_set()
    done = await stream.result()
    assert done.hypothesis == SAID
    assert min(done.queue_s, done.infer_s) >= 1
    assert done.load_s == 0


async def test_its_audio_is_freed_with_it():
    """The audio is freed at once, by the count of its references: the collector comes minutes later."""
    batch, audio = Batch(), _audio()
    thread, kept = EngineThread(batch, idle_timeout_s=0, start=False), weakref.ref(audio)
    gc.disable()
    try:
        stream = EngineClient(thread).stream(Utterance(audio, stream=True), priority=NOW)
        del audio
        thread.turn()
        batch.admitted.clear()
        assert (await stream.result()).hypothesis == SAID
        await asyncio.sleep(0)
        del stream
        assert kept() is None
    finally:
        gc.enable()


async def test_the_transcript_of_the_small_model_is_the_draft_of_the_large_one():
    """The draft has the words and their language, the rest of the utterance stays, and the saved tokens are counted."""
    pair = Pair()
    answer = await pair.ask(context="names", stream=True)
    (draft,), (asked,) = pair.small.admitted, pair.large.admitted
    assert answer.hypothesis.text == "said twice"
    assert asked.draft_text == Written("said once", "English")
    assert (asked.context, asked.stream, asked.draft) == (draft.context, True, ())
    assert not draft.stream
    assert pair.drafting.saved == pytest.approx(2 / 3)  # one pass for two tokens and the end


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.5},
        {"draft": (1, 2)},
        {"draft_text": Written("known", "English")},
        {"session": "live", "last": False},
        {"language": "German"},
    ],
)
async def test_what_a_draft_cannot_help_has_none(values):
    """The small model, here of English, is not even asked."""
    pair = Pair(traits=EngineTraits(languages=("English",)))
    await pair.ask(**values)
    assert pair.small.admitted == []
    assert len(pair.large.admitted) == 1


async def test_an_answer_needs_no_draft():
    """The large model answers alone where the small one fails."""
    pair = Pair(error=TranscriptionFailed("broken"))
    assert (await pair.ask()).hypothesis.text == "said twice"
    assert pair.large.admitted[0].draft_text is None
    assert pair.drafting.spans == 0
