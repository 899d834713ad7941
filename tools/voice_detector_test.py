"""The graph and the weights of the voice detector."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from asr_server.audio import segmentation
from asr_server.audio.segmentation import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from E2Etest.drive import recordings
from tools import voice_detector

# Importing the package would import torch.
PACKAGE = Path(find_spec("silero_vad").origin).parent / "data"


@pytest.fixture
def stock():
    """Silero's network as its package runs it: probabilities (k,) of the frames (k, 512) of a stream."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    network = onnxruntime.InferenceSession(str(PACKAGE / "silero_vad.onnx"), options)

    def probabilities(frames):
        state, context, scores = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
        for frame in frames:
            window = np.concatenate((context, frame))[None]
            score, state = network.run(None, {"input": window, "state": state, "sr": np.array(SAMPLE_RATE, np.int64)})
            context = frame[-64:]
            scores.append(score[0, 0])
        return np.array(scores)

    return probabilities


def test_the_graph_is_what_the_tool_writes():
    """So that nobody has to read the file."""
    made = voice_detector.model(segmentation.WEIGHTS).SerializeToString(deterministic=True)
    assert made == segmentation.GRAPH.read_bytes()


def test_the_weights_are_the_file_that_the_notice_names():
    content = segmentation.WEIGHTS.read_bytes()
    assert content == (PACKAGE / segmentation.WEIGHTS.name).read_bytes()
    assert f"SHA-256 {hashlib.sha256(content).hexdigest()}" in Path("NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize("most_s", [3, pytest.param(60, marks=pytest.mark.nightly)])
def test_probabilities_are_those_of_silero(stock, monkeypatch, most_s):
    """On real speech, all recordings in the same calls, without amplification."""
    monkeypatch.setattr(segmentation, "_MOST_GAIN", 1.0)
    audio = [recordings.waveform(clip.path)[: most_s * SAMPLE_RATE] for clip in recordings.real_clips()]
    clips = [samples[: len(samples) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES) for samples in audio]
    streams, found = [SpeechProbability() for _ in clips], [[] for _ in clips]
    for at in range(0, max(map(len, clips)), 4):
        playing = [number for number, frames in enumerate(clips) if at < len(frames)]
        scores = SpeechProbability.push_together([(streams[each], clips[each][at : at + 4]) for each in playing])
        for each, part in zip(playing, scores, strict=True):
            found[each].append(part)
    assert sum(map(len, clips)) > 1_000
    for parts, frames in zip(found, clips, strict=True):
        assert np.abs(np.concatenate(parts) - stock(frames)).max() < 1e-4
