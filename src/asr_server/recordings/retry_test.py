"""The second try for an answer that went wrong, with a scripted engine."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from asr_server.audio.segmentation import quietest_middle
from asr_server.engine.client import Transcription
from asr_server.engine.protocol import Finish, Hypothesis, Utterance
from asr_server.recordings.retry import retry

AUDIO = np.random.default_rng(0).normal(0, 0.1, 16_000 * 9).astype(np.float32)


def transcription(finish, utterance):
    """The engine client's answer."""
    hypothesis = Hypothesis("text", "English", (1,), (-0.1,), finish, 1, 1, 1)
    return Transcription(hypothesis, 0.0, 0.0, 0.0, end=len(utterance.audio), temperature=utterance.temperature)


class Engine:
    """Answers by `script(utterance)`: a `Finish`, an error, or None for never."""

    def __init__(self, script):
        self.script, self.asked, self.cancelled = script, [], 0

    async def __call__(self, utterance):
        self.asked.append(utterance)
        finish = self.script(utterance)
        if isinstance(finish, Exception):
            raise finish
        try:
            return transcription(finish, utterance) if finish else await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def answers(self, utterance, first=Finish.LOOP):
        return await retry(utterance, transcription(first, utterance), self)


async def test_a_good_answer_is_not_asked_for_again():
    """It is the one answer for all samples, at the temperature that it was made with."""
    engine = Engine(lambda utterance: Finish.END)
    (answer,) = await engine.answers(Utterance(AUDIO, temperature=0.7), Finish.END)
    assert (answer.start, answer.end, answer.temperature, engine.asked) == (0, len(AUDIO), 0.7, [])


@pytest.mark.parametrize("finish", [Finish.LOOP, Finish.BUDGET])
async def test_a_greedy_failure_is_asked_for_in_halves(finish):
    """The halves have all samples and the context of the whole, but not its draft and not its forced beginning."""
    engine = Engine(lambda utterance: Finish.END)
    whole = Utterance(AUDIO, "English", "Zürich", draft=(1,), prefix=(2,), session="s", last=True, stream=True)
    whole = replace(whole, languages=("English", "German"))
    first, second = await engine.answers(whole, finish)
    assert (first.start, first.end, second.end) == (0, second.start, len(AUDIO))
    assert np.array_equal(np.concatenate([half.audio for half in engine.asked]), AUDIO)
    for half in engine.asked:
        assert (half.language, half.languages, half.context) == ("English", ("English", "German"), "Zürich")
        assert (half.draft, half.prefix, half.session) == ((), (), None)


async def test_a_sampled_failure_is_asked_for_greedily_first():
    """The whole again at temperature 0; halves only if that fails too, and no third try."""
    engine = Engine(lambda utterance: Finish.END)
    (answer,) = await engine.answers(Utterance(AUDIO, temperature=0.7))
    assert (answer.end, answer.temperature) == (len(AUDIO), 0.0)
    engine = Engine(lambda utterance: Finish.LOOP)
    answers = await engine.answers(Utterance(AUDIO, temperature=0.7))
    assert [half.hypothesis.finish for half in answers] == [Finish.LOOP] * 2
    assert [utterance.temperature for utterance in engine.asked] == [0.0] * 3


async def test_a_short_utterance_is_not_cut():
    """Under two seconds the cut costs more words than the loop."""
    engine = Engine(lambda utterance: Finish.END)
    (answer,) = await engine.answers(Utterance(AUDIO[:31_000]))
    assert (answer.hypothesis.finish, engine.asked) == (Finish.LOOP, [])


async def test_one_failing_half_cancels_the_other():
    """The error is the caller's, and nothing is left with the engine."""
    errors = iter([ValueError("broken")])
    engine = Engine(lambda utterance: next(errors, None))
    with pytest.raises(ValueError, match="broken"):
        await engine.answers(Utterance(AUDIO))
    await asyncio.sleep(0)
    assert (len(engine.asked), engine.cancelled) == (2, 1)


def test_halves_meet_at_the_quietest_place_of_the_middle():
    """A pause in the middle third is where they are cut."""
    audio = AUDIO.copy()
    audio[16_000 * 5 : 16_000 * 5 + 3_000] = 0
    assert 16_000 * 5 - 512 <= quietest_middle(audio) <= 16_000 * 5 + 3_000
