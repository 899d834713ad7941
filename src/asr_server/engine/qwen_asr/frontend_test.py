"""The log-mel front end against the checkpoint's own extractor."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import WhisperFeatureExtractor

from asr_server import demo
from asr_server.engine.qwen_asr import frontend
from asr_server.engine.qwen_asr.encoder import GpuLogMel

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module")
def mel():
    return frontend.LogMel(frontend.MelSettings.load(demo.checkpoint_path()))


@pytest.mark.parametrize("samples", [100, 7_999, 8_000, 8_001, 16_159, 16_160, 48_111])
def test_it_is_the_extractors(mel, speech, samples):
    audio = np.resize(speech, samples)
    extract = WhisperFeatureExtractor.from_pretrained(demo.checkpoint_path())
    options = {"sampling_rate": 16_000, "padding": True, "truncation": False, "return_attention_mask": True}
    out = extract(np.pad(audio, (0, max(0, 8000 - samples))), **options, return_tensors="np")
    expected = out["input_features"][0, :, : int(out["attention_mask"].sum())]
    assert_allclose(mel(audio), expected, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize(("samples", "first"), [(100, 0), (8_001, 0), (16_000, 0), (16_160, 2), (48_111, 100)])
def test_frames_that_are_made_for_a_gpu_are_those_of_a_processor(mel, speech, samples, first):
    """Also where their number is no whole number of seconds."""
    audio, on_device = np.resize(speech, samples), GpuLogMel(frontend.MelSettings(), torch.device("cpu"))
    found, expected = (one.log10_mel(audio, first) for one in (on_device, mel))
    lowest = frontend.floor(expected)
    assert frontend.floor(found) == pytest.approx(float(lowest), abs=1e-4)
    assert_allclose(frontend.features(found, lowest), frontend.features(expected, lowest), atol=5e-5)
