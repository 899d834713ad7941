"""The model of the end of turns: its input, and its answers on real speech."""

import runpy
from importlib import metadata

import numpy as np
import pytest
import soundfile

from asr_server import demo
from asr_server.features import turns as model


@pytest.fixture(scope="module")
def speech():
    """A sentence of eleven seconds with pauses in it, float32 (n,) at 16 kHz."""
    return soundfile.read(demo.speech().recording, dtype="float32")[0]


def test_the_input_is_that_of_the_package(speech):
    """The model gets the last 8 s, after silence if there is less. Only one file of the package is imported."""
    (file,) = [path for path in metadata.files("pipecat-ai") if path.name == "_whisper_features.py"]
    reference = runpy.run_path(str(file.locate()))["compute_whisper_log_mel_features"]
    for seconds in (0.2, 3.0, 8.0, 11.0):
        heard = speech[: int(seconds * 16_000)]
        filled = np.pad(heard[-128_000:], (max(0, 128_000 - len(heard)), 0))
        assert np.abs(model.log_mels(heard) - reference(filled)).max() <= 1e-4


@pytest.mark.parametrize("samples", [0, 16_000])
def test_silence_has_an_input_although_its_variance_is_0(samples):
    assert np.isfinite(model.log_mels(np.zeros(samples, np.float32))).all()


def test_the_middle_of_a_sentence_is_no_end(speech):
    """The speaker says "... ask not, what your country can do for you; ask what you can do for your country"."""
    judge = model.SmartTurn()
    middle, end = judge.probability(speech[: int(4.6 * 16_000)]), judge.probability(speech[: int(10.8 * 16_000)])
    assert middle < 0.5 < end
