"""Drafts of a smaller model on one thread with the model that verifies them."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from asr_server.core.errors import TranscriptionFailed
from asr_server.engine.client import EngineClient, ModelDrafts
from asr_server.engine.protocol import DEFAULT_TRAITS, EngineTraits, Finish, Hypothesis, Tokens, Utterance, Written
from asr_server.schedule.job import Priority
from asr_server.schedule.ports import RowDelta, RowDone, RowFailed
from asr_server.schedule.thread import EngineThread

SAID = Hypothesis("said twice", "English", (1, 2), (-0.1, -0.1), Finish.END, 1, 1, 2)
NOW = Priority.INTERACTIVE


def _audio():
    return np.zeros(16_000, np.float32)


class Answering:
    """A batch that answers every row with its text, in as many passes as it was given; it keeps what it was asked."""

    loaded, fits, free_slots, urgent_slots = True, True, 8, 8

    def __init__(self, said, error=None):
        self.said, self.error, self.asked, self.keys = said, error, [], []

    def load(self): ...

    def unload(self): ...

    def admit(self, key, item, urgent=False):
        self.asked.append(item)
        self.keys.append(key)

    def step(self, begin_s=None):
        keys, self.keys = self.keys, []
        for key in keys:
            if self.error:
                yield RowFailed(key, self.error)
                continue
            yield RowDelta(key, Tokens((1,), (-0.1,), self.said.text))
            yield RowDone(key, self.said)

    def drop(self, key):
        self.keys = [other for other in self.keys if other != key]


class Pair:
    """A large model and a small one on one thread; `ask` runs turns until the answer is there."""

    def __init__(self, error=None, traits=DEFAULT_TRAITS):
        self.large = Answering(replace(SAID, passes=1))
        self.small = Answering(replace(SAID, text="said once"), error)
        self.thread = EngineThread(self.large, others={"small": self.small}, idle_timeout_s=0, start=False)
        self.drafting = ModelDrafts(EngineClient(self.thread, traits, "small"))
        self.client = EngineClient(self.thread, drafting=self.drafting)

    async def ask(self, **values):
        task = asyncio.create_task(self.client.transcribe(Utterance(_audio(), **values), priority=NOW))
        while not task.done():
            await asyncio.sleep(0)
            self.thread.turn()
        return await task


async def test_the_transcript_of_the_small_model_is_the_draft_of_the_large_one():
    """The draft has the words and their language, nothing else of the utterance changes, and what it saves is
    counted."""
    pair = Pair()
    answer = await pair.ask(context="names", stream=True)
    (draft,), (asked,) = pair.small.asked, pair.large.asked
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
    ids=["sampled", "has ids", "has words", "partial", "foreign"],
)
async def test_what_a_draft_cannot_help_has_none(values):
    """The small model, here of English, is not even asked."""
    pair = Pair(traits=EngineTraits(languages=("English",)))
    await pair.ask(**values)
    assert pair.small.asked == []
    assert len(pair.large.asked) == 1


async def test_an_answer_needs_no_draft():
    """The large model answers alone where the small one fails."""
    pair = Pair(error=TranscriptionFailed("broken"))
    assert (await pair.ask()).hypothesis.text == "said twice"
    assert pair.large.asked[0].draft_text is None
    assert pair.drafting.spans == 0


async def test_who_had_a_draft_does_not_wait_again():
    """The job keeps the place in the queue that the draft had: what came meanwhile is after it."""
    pair = Pair()
    stream = pair.client.stream(Utterance(_audio()), priority=NOW)
    await asyncio.sleep(0)
    later = Utterance(_audio(), draft=(1,))
    pair.client.stream(later, priority=NOW)
    pair.large.urgent_slots = pair.large.free_slots = 0
    pair.thread.turn()
    for _ in range(3):
        await asyncio.sleep(0)
    pair.large.free_slots = 8
    pair.thread.turn()
    assert pair.large.asked[-1] is later
    assert (await stream.result()).hypothesis.text == "said twice"


async def test_cancelling_cancels_the_draft_and_what_would_have_followed():
    """Nothing of it stays in the queue."""
    pair = Pair()
    stream = pair.client.stream(Utterance(_audio()), priority=NOW)
    await asyncio.sleep(0)
    assert pair.thread.snapshot().waiting_s == 1.0
    stream.cancel()
    await asyncio.sleep(0)
    pair.thread.turn()
    assert (pair.small.asked, pair.large.asked, pair.thread.snapshot().waiting_s) == ([], [], 0.0)
