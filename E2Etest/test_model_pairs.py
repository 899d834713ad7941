"""Two models on one server with real weights: drafts change no id, and live words are those of the accurate model."""

import asyncio
import random
import shutil
import time

import numpy as np
import pytest
import soundfile

from asr_server import app as server
from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import capabilities
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr.checkpoint import locate
from asr_server.schedule.job import Priority
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from E2Etest.drive.session import data, finals, pcm_of, stream
from E2Etest.live.interrupted import laws

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.nightly, pytest.mark.slow]

ENGLISH = "moonshine-tiny-en"


@pytest.fixture(scope="module")
def variant(tmp_path_factory):
    """A second checkpoint, whose answers differ now and then: noise of 3 % of its deviation on each weight."""
    import torch
    from safetensors.torch import load_file, save_file

    target = tmp_path_factory.mktemp("variant") / "checkpoint"
    shutil.copytree(locate("demo"), target)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(target / "model.safetensors")
    for name, weight in weights.items():
        if weight.is_floating_point() and weight.numel() > 1:
            noise = torch.randn(weight.shape, generator=generator) * weight.float().std() * 0.03
            weights[name] = (weight.float() + noise).to(weight.dtype)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return str(target)


@pytest.fixture(scope="module")
def clips():
    """Cut and join the held-out clips at random, and add noise, so that each clip differs."""
    rng, noise = random.Random(19), np.random.default_rng(19)
    spoken = [clip for clip in recordings.clips() if clip.text and clip.seconds <= 6]
    known = [soundfile.read(clip.path, dtype="float32")[0].astype(np.float32) for clip in spoken]
    made = []
    for number in range(500):
        audio = known[number % len(known)]
        if rng.random() < 0.1:
            audio = np.concatenate([audio, np.zeros(4_800, np.float32), rng.choice(known)])
        audio = audio[: max(8_000, int(len(audio) * rng.uniform(0.4, 1.0)))]
        level = rng.choice([0, 0.001, 0.005])
        made.append((audio + noise.normal(0, level, len(audio)).astype(np.float32)).clip(-1, 1))
    return made


async def _answers(clips, **values):
    """What a server with these settings says to all of them, eight at a time, and its counts of drafts."""
    chosen = settings.load(_env_file=None, model_id="demo", dtype="float32", quantize="none", **values)
    built = server.machinery(chosen, feature_list.resolve(chosen, capabilities.probe()))
    places = asyncio.Semaphore(8)

    async def ask(clip):
        async with places:
            answer = await built.clients[""].transcribe(Utterance(clip), priority=Priority.INTERACTIVE)
            return answer.hypothesis

    try:
        return await asyncio.gather(*map(ask, clips)), built.drafting
    finally:
        await built.close()


@pytest.mark.timeout(2700)
async def test_a_draft_of_another_model_changes_no_id(clips, variant):
    """In float32 drafts change no id. A similar model saves 60 % of the decode steps; one with other tokens and another
    spelling saves some."""
    alone, _ = await _answers(clips)
    for fast, count, least in ((variant, len(clips), 0.6), (ENGLISH, 100, 0.1)):
        drafted, drafting = await _answers(clips[:count], fast_model_id=fast, use_speculative=True)
        assert [answer.ids for answer in drafted] == [answer.ids for answer in alone[:count]]
        assert len({answer.ids for answer in alone[:count]}) > count / 3
        print(f"{fast}: {drafting.saved:.1%} of the decode steps of {drafting.spans} spans saved")
        assert drafting.spans == count
        assert drafting.saved >= least


def _pieces(clip, pause_s=0.0):
    """The clip and 0.9 s of silence in pieces of 0.2 s, with a pause before each."""
    pcm = np.concatenate([pcm_of(clip.path), np.zeros(14_400, np.int16)])
    for at in range(0, len(pcm), 3_200):
        time.sleep(pause_s)
        yield data(pcm[at : at + 3_200])


def _errors(server, clips):
    """Word errors of the finals of live sessions, and the words. No committed word is ever taken back."""
    errors = words = 0
    for clip in clips:
        messages = stream(server, _pieces(clip), language="en")
        laws(messages)
        said = recordings.plain_words(" ".join(text for text, *_ in finals(messages)))
        wanted = recordings.plain_words(clip.text)
        errors, words = errors + recordings.word_errors(wanted, said), words + len(wanted)
    return errors, words


@pytest.mark.timeout(1800)
def test_live_finals_are_those_of_the_accurate_model(tmp_path, variant):
    """A second model for partials adds at most two wrong words to the finals."""
    clips = [clip for clip in recordings.clips() if clip.language == "English" and clip.kind in ("phrase", "digits")]
    clips = clips[:16]
    with ready(tmp_path / "alone") as server:
        alone, _ = _errors(server, clips)
    for fast in (variant, ENGLISH):
        with ready(tmp_path / "dual", DUAL_MODEL="true", FAST_MODEL_ID=fast) as server:
            errors, words = _errors(server, clips)
            # As one speaks: there is time for partials.
            stream(server, _pieces(clips[0], pause_s=0.2), language="en")
            (option,) = (o for o in server.health()["plan"] if o["name"] == "dual_model")
            assert option["active"]
            assert "partials took" in option["reason"]
            assert [model["state"] for model in server.health()["models"]] == ["loaded", "loaded"]
        print(f"{fast}: {errors} of {words} words are wrong, alone {alone}")
        assert errors <= alone + 2
