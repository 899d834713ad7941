"""The model of the end of turns: its input, its answers on real speech, and its file."""

import asyncio
import hashlib
import importlib.util
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from asr_server import demo, feature_list
from asr_server.cli import live
from asr_server.core import settings
from asr_server.engine.feature import END_OF_TURN
from asr_server.features import turns as model


@pytest.fixture(scope="module")
def speech():
    """A sentence of eleven seconds with pauses in it, float32 (n,) at 16 kHz."""
    raw = asyncio.run(live.decoded(demo.speech().recording))
    return np.frombuffer(raw, "<i2").astype(np.float32) / np.float32(32_768)


@pytest.fixture(scope="module")
def reference():
    """The package's own computation of the input, from its file: the package is not imported."""
    (file,) = [path for path in metadata.files("pipecat-ai") if path.name == "_whisper_features.py"]
    spec = importlib.util.spec_from_file_location("reference", file.locate())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_whisper_log_mel_features


@pytest.mark.parametrize("seconds", [0.2, 3.0, 8.0, 11.0])
def test_the_input_is_that_of_the_package(speech, reference, seconds):
    """The last 8 s, behind silence where there is less."""
    heard = speech[: int(seconds * 16_000)]
    filled = np.pad(heard[-128_000:], (max(0, 128_000 - len(heard)), 0))
    assert np.abs(model.log_mels(heard) - reference(filled)).max() <= 1e-4


def test_silence_has_an_input_without_a_hole():
    """The variance of silence is 0."""
    assert np.isfinite(model.log_mels(np.zeros(16_000, np.float32))).all()
    assert np.isfinite(model.log_mels(np.zeros(0, np.float32))).all()


def test_the_middle_of_a_sentence_is_no_end(speech):
    """The speaker says "... ask not, what your country can do for you; ask what you can do for your country"."""
    judge = model.SmartTurn()
    middle, end = judge.probability(speech[: int(4.6 * 16_000)]), judge.probability(speech[: int(10.8 * 16_000)])
    assert middle < 0.5 < end


def test_the_option_is_active_unless_pauses_are_asked_for():
    """`pause` needs no model."""

    def resolved(**chosen):
        return feature_list.resolve(settings.load(_env_file=None, model_id="fake", **chosen))

    assert resolved().is_active(END_OF_TURN)
    assert not resolved(endpointing="pause").is_active(END_OF_TURN)


def test_the_network_is_the_file_that_the_notice_names():
    """It is a copy of the package's, and NOTICE has its checksum."""
    (theirs,) = [path.locate() for path in metadata.files("pipecat-ai") if path.name == model.WEIGHTS.name]
    content = model.WEIGHTS.read_bytes()
    assert content == theirs.read_bytes()
    assert f"SHA-256 {hashlib.sha256(content).hexdigest()}" in Path("NOTICE").read_text(encoding="utf-8")
