"""Fixtures of the tests of Qwen3-TTS: small checkpoints with random weights, engines loaded once, the SDK itself."""

import functools
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from asr_server.features.speech_output.engines.protocol import VoiceSample
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.schedule.model import RowDone


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory):
    """A directory with links to the files of a checkpoint; of the JSON files named some keys are changed."""
    from tools.checkpoints.speech import random_speech_checkpoint

    def make(kind="custom_voice", changes=None):
        source, target = random_speech_checkpoint("small", kind), tmp_path_factory.mktemp("speech")
        shutil.copytree(source, target, copy_function=os.symlink, dirs_exist_ok=True)
        for name, changed in (changes or {}).items():
            content = {**json.loads((target / name).read_text()), **changed}
            (target / name).unlink()
            (target / name).write_text(json.dumps(content))
        return target

    return make


@pytest.fixture(scope="session")
def greedy_checkpoint(make_checkpoint):
    """Checkpoints by kind that draw nothing; that of named voices follows instructions."""
    greedy = {"generation_config.json": {"do_sample": False, "subtalker_dosample": False}}
    large = {**greedy, "config.json": {"tts_model_size": "1b7"}}
    return {"custom_voice": make_checkpoint("custom_voice", large), "base": make_checkpoint("base", greedy)}


@functools.cache
def loaded(model):
    engine = QwenSpeechEngine(model)
    engine.load()
    return engine


@pytest.fixture(scope="session")
def greedy(greedy_checkpoint):
    return {kind: loaded(SpeechModel(str(directory))) for kind, directory in greedy_checkpoint.items()}


@pytest.fixture(scope="session")
def engine(make_checkpoint):
    return loaded(SpeechModel(str(make_checkpoint())))


@pytest.fixture(scope="session")
def sdk(greedy_checkpoint):
    """The models of the greedy checkpoints as the SDK itself loads them, by kind."""
    import torch

    from asr_server.features.speech_output.engines.qwen_tts.sdk import Qwen3TTSModel

    return {
        kind: Qwen3TTSModel.from_pretrained(str(directory), dtype=torch.float32)
        for kind, directory in greedy_checkpoint.items()
    }


def speak(engine, *sentences):
    """Speak sentences; their answers in the order given, with `audio`, or their errors."""
    spoken = []
    for key, sentence in enumerate(sentences):
        engine.admit(key, sentence)
        *deltas, last = engine.step()
        if isinstance(last, RowDone):
            audio = np.concatenate([delta.value for delta in deltas])
            spoken.append(SimpleNamespace(audio=audio, answer=last.value))
        else:
            spoken.append(last.error)
    return spoken


@pytest.fixture(scope="session")
def voice():
    """A recording that is no voice, of 2.1 s, with words or without."""
    rng, time_s = np.random.default_rng(0), np.arange(50_000) / 24_000
    audio = (rng.normal(0, 0.1, len(time_s)) * np.sin(7 * time_s)).clip(-1, 1).astype(np.float32)
    return {words: VoiceSample(audio, words, key=f"voice {words}") for words in ("the words of it", "")}
