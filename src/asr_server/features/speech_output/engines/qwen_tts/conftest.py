"""Fixtures of the tests of Qwen3-TTS: small checkpoints with random weights, engines loaded once, the SDK itself."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from asr_server.features.speech_output.engines.protocol import VoiceSample
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.schedule.model import RowDone

GREEDY = {"generation_config.json": {"do_sample": False, "subtalker_dosample": False}}


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory):
    """A directory with links to the files of a checkpoint; of the JSON files named some keys are changed."""
    from tools.checkpoints.speech import random_speech_checkpoint

    def make(kind="custom_voice", changes=None):
        source, target = random_speech_checkpoint("small", kind), tmp_path_factory.mktemp("speech")
        for path in source.rglob("*"):
            if path.is_file():
                own = target / path.relative_to(source)
                own.parent.mkdir(exist_ok=True)
                own.symlink_to(path)
        for name, changed in (changes or {}).items():
            content = {**json.loads((target / name).read_text()), **changed}
            (target / name).unlink()
            (target / name).write_text(json.dumps(content))
        return target

    return make


@pytest.fixture(scope="session")
def greedy_checkpoint(make_checkpoint):
    """Checkpoints by kind that draw nothing; that of named voices follows instructions."""
    large = {**GREEDY, "config.json": {"tts_model_size": "1b7"}}
    return {"custom_voice": make_checkpoint("custom_voice", large), "base": make_checkpoint("base", GREEDY)}


@pytest.fixture(scope="session")
def make_engine():
    """Loaded engines by what they are made of, each made once."""
    made = {}

    def make(directory, **values):
        model = SpeechModel(str(directory), **values)
        if model not in made:
            made[model] = QwenSpeechEngine(model)
            made[model].load()
        return made[model]

    return make


@pytest.fixture(scope="session")
def greedy(make_engine, greedy_checkpoint):
    return {kind: make_engine(directory) for kind, directory in greedy_checkpoint.items()}


@pytest.fixture(scope="session")
def engine(make_engine, make_checkpoint):
    return make_engine(make_checkpoint())


@pytest.fixture(scope="session")
def sdk(greedy_checkpoint):
    """The models of the greedy checkpoints as the SDK itself loads them, by kind."""
    import torch

    from asr_server.features.speech_output.engines.qwen_tts.sdk import Qwen3TTSModel

    return {
        kind: Qwen3TTSModel.from_pretrained(str(directory), dtype=torch.float32)
        for kind, directory in greedy_checkpoint.items()
    }


@pytest.fixture(scope="session")
def speak():
    """Speak sentences; their answers in the order given, with `audio`, or their errors."""

    def speak(engine, *sentences):
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

    return speak


@pytest.fixture(scope="session")
def voice():
    """A recording that is no voice, of 2.1 s, with words or without."""
    rng, time_s = np.random.default_rng(0), np.arange(50_000) / 24_000
    audio = (rng.normal(0, 0.1, len(time_s)) * np.sin(7 * time_s)).clip(-1, 1).astype(np.float32)
    return {words: VoiceSample(audio, words, key=f"voice {words}") for words in ("the words of it", "")}
