"""Qwen3-TTS on a running server, beside the demonstration recogniser on the same thread. The weights are random."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from E2Etest.drive.process import ready
from E2Etest.drive.procfs import engine_of, kill_engine, wait_until_gone

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.nightly]

WANTED = {"input": "Hello there.", "response_format": "pcm", "seed": 3}


@pytest.fixture(scope="module")
def models():
    """The settings for the two checkpoints."""
    from tools.checkpoints.speech import BASE, CUSTOM_VOICE, random_speech_checkpoint  # imports torch

    return {
        "MODEL_ID": "demo",
        "SPEECH": str(random_speech_checkpoint("small", CUSTOM_VOICE)),
        "SPEECH_CLONE_MODEL": str(random_speech_checkpoint("small", BASE)),
    }


@pytest.fixture(scope="module")
def speaking(tmp_path_factory, models):
    with ready(tmp_path_factory.mktemp("qwen-speech") / "log", **models) as server:
        yield server


def _spoken(server, **changes):
    answer = server.client.post("/v1/audio/speech", json=WANTED | changes)
    assert answer.status_code == 200, answer.text
    return answer.content


def _are_equal(one, other):
    """Where numbers are added up by several threads, their last bit may differ."""
    one, other = (np.frombuffer(samples, "<i2").astype(int) for samples in (one, other))
    return len(one) == len(other) and np.abs(one - other).max() <= 2


def test_voice_and_seed_change_the_samples_and_nothing_else_does(speaking):
    """Two equal requests get the same samples, except for the last bit of some."""
    first = _spoken(speaking)
    assert _are_equal(first, _spoken(speaking))
    assert not _are_equal(first, _spoken(speaking, seed=4))
    assert not _are_equal(first, _spoken(speaking, voice="nova"))


def test_a_recording_is_transcribed_between_two_answers(speaking, sample):
    """Both models are loaded, on one thread, and `/health` counts the recogniser alone among the models."""
    _spoken(speaking)
    heard = speaking.transcribe(sample[0])
    assert heard.json()["text"] == sample[1]
    health = speaking.health()
    assert [model["id"] for model in health["models"]] == ["demo"]
    assert health["speech_state"] == "loaded"


@pytest.mark.timeout(600)
def test_an_engine_process_speaks_the_same_and_ends_when_idle(speaking, models, tmp_path, sample):
    """Killed in the middle of a sentence, the next process speaks it; a voice is imitated there too."""
    form = {"data": {"input": "Hello there.", "response_format": "pcm", "seed": "3"}, "files": {"file": sample[0]}}
    wanted = speaking.client.post("/v1/audio/speech/clone", **form).content
    with ready(tmp_path / "log", GATEWAY_MODE="true", IDLE_TIMEOUT="5", **models) as server:
        assert _are_equal(_spoken(server), _spoken(speaking))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(_spoken, server)
            server.wait_for(lambda health: health["queue"]["running"] or health["speech_queue"]["sentences_left"])
            pid = kill_engine(server)
            assert _are_equal(asked.result(), _spoken(speaking))
        assert _are_equal(server.client.post("/v1/audio/speech/clone", **form).content, wanted)
        assert engine_of(server) not in (pid, None)
        wait_until_gone(engine_of(server), wait_s=120)
        refused = server.client.post("/v1/audio/speech", json=WANTED | {"voice": "nobody"})
        assert refused.status_code == 400
