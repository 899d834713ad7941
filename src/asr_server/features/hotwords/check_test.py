"""Terms are found in texts, and the demonstration checkpoint finds support for answers that are made up, or none."""

import random
from dataclasses import replace

import numpy as np
import pytest

from asr_server.engine.client import Transcription
from asr_server.engine.conftest import ends, loaded_qwen
from asr_server.engine.protocol import Utterance, Written
from asr_server.features.hotwords.check import HotwordCheck, Terms
from asr_server.text import words
from E2Etest.drive import recordings

LISTS = ("kitchen, lights", "bedroom, music, volume", "weather", "monday, tuesday, wednesday", "hello, living room")


@pytest.mark.parametrize(
    ("context", "text", "found"),
    [
        ("Kubernetes, Istio", "So kubernetes; and ISTIO.", {1, 3}),
        ("We met in New York. The topic: node.js", "we met in new york, the topic node.js", set(range(8))),
        ("New York", "New Jersey is not york", set()),  # part of a term is none
        ("电灯、音乐", "打开电灯", {2, 3}),
        ("!, ?", "What?", set()),
        ("", "what", set()),
    ],
)
def test_the_words_of_terms_are_found(context, text, found):
    assert Terms(context).found(words.split(text)) == found


def test_the_end_of_a_beginning_may_become_a_term():
    """The text of a stream ends anywhere."""
    terms = Terms("New York Times, Kubernetes")
    for text, found in (("I read the New York Ti", {3, 4, 5}), ("Kub", {0}), ("Kubernetes is", {0})):
        assert terms.found(words.split(text), is_open=True) == found


@pytest.fixture(scope="module")
def ask():
    engine = loaded_qwen()

    async def ask(utterance):
        ((done,), _) = ends(engine, utterance)
        return Transcription(done.value, 0.0, 0.0, 0.0, end=len(utterance.audio))

    return ask


async def made_up(ask, audio, text):
    """Return an answer as if the model had written that text for the audio, with its own ids."""
    found = await ask(Utterance(audio, prefix_text=Written(text, "English")))
    said = found.hypothesis
    count = next((n for n, end in enumerate(said.offsets, 1) if end >= len(text)), len(said.ids))
    cut = replace(said, text=text, ids=said.ids[:count], logprobs=said.logprobs[:count])
    return replace(found, hypothesis=cut)


@pytest.mark.torch
@pytest.mark.nightly
async def test_a_list_that_nobody_says_is_replaced(ask):
    chance, noise = random.Random(0), np.random.default_rng(0)
    for level in (0.0, *(10 ** -chance.uniform(1, 4) for _ in range(20))):
        audio = noise.normal(0, level, chance.randint(1, 6) * 16_000).clip(-1, 1).astype(np.float32)
        context = chance.choice(LISTS)
        listed = await made_up(ask, audio, context)
        found = await HotwordCheck().checked(Utterance(audio, context=context), listed, ask)
        assert (found.is_replaced, found.answer.hypothesis.text) == (True, "")


@pytest.mark.torch
@pytest.mark.nightly
async def test_a_list_that_is_said_stays(ask):
    """The words of each clip are the list, and its sound supports them also where the model hears others without it."""
    heard_otherwise = 0
    for clip in recordings.clips():
        if clip.language == "English" and clip.seconds < 9:
            audio = recordings.waveform(clip.path)
            said = await made_up(ask, audio, clip.text)
            found = await HotwordCheck().checked(Utterance(audio, context=clip.text), said, ask)
            assert found.answer is said
            heard_otherwise += bool(found.biased)
    assert heard_otherwise


@pytest.mark.torch
@pytest.mark.nightly
async def test_committed_words_stay(ask):
    """What is heard without the list in a live session begins with the words that were given out."""
    noise = np.random.default_rng(0).normal(0, 0.01, 2 * 16_000).astype(np.float32)
    committed = (await made_up(ask, noise, "hello")).hypothesis.ids
    utterance = Utterance(noise, context="hello, kitchen, lights", prefix=committed)
    listed = await made_up(ask, noise, "hello kitchen lights")
    found = await HotwordCheck().checked(utterance, listed, ask)
    assert found.is_replaced
    assert found.answer.hypothesis.ids[: len(committed)] == committed
    assert "lights" not in found.answer.hypothesis.text
