"""Recorded frames. The border to CUDA is a tracer: what it replays are operations on tensors, and no line of Python."""

from unittest.mock import Mock

import pytest
import torch

from asr_server.engine.torch.passes_test import traced
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.features.speech_output.engines.qwen_tts.engine import QwenSpeechEngine
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel
from asr_server.features.speech_output.engines.qwen_tts.talker import CodePredictor

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_recorded_frames_are_those_of_passes(make_checkpoint, speak, monkeypatch):
    """The frames are equal for one row and for two, which come and go."""
    engine = QwenSpeechEngine(SpeechModel(str(make_checkpoint()), slots=2))
    engine.load()
    sentences = [Sentence(text, "ryan", seed=3) for text in ("Hello.", "Good morning to you.", "Well, well.")]
    expected = speak(engine, *sentences)
    with torch.inference_mode():
        assert engine._runtime.decoder.record(traced, lambda: None) == 2
    monkeypatch.setattr(CodePredictor, "__call__", Mock(side_effect=AssertionError("passes are made")))
    for got, plain in zip(speak(engine, *sentences), expected, strict=True):
        assert got.answer == plain.answer
        assert abs(got.audio - plain.audio).max() < 1e-4
