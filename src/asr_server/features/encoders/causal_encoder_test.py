"""The causal encoder: nothing that is there changes. That follows from the code, whatever the weights are."""

import shutil

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from asr_server.core.errors import ModelUnavailable
from asr_server.engine import core, plan
from asr_server.engine.capabilities import probe
from asr_server.engine.conftest import causal_checkpoint, planned
from asr_server.engine.protocol import Utterance
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.frontend import LogMel
from asr_server.engine.qwen_asr.prefix_cache import PrefixCache
from asr_server.features.encoders import onnx_export
from asr_server.features.encoders.causal_encoder import CausalAudio, CausalClip, CausalEncoder
from asr_server.features.encoders.conftest import loaded

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

RATE = 16_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Return a checkpoint whose encoder attends to less than the clips."""
    return causal_checkpoint(tmp_path_factory.mktemp("causal") / "checkpoint", 52)


@pytest.fixture(scope="module")
def parts(checkpoint):
    return loading.load(checkpoint, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def encoder(parts):
    return CausalEncoder(parts.tower)


@pytest.fixture(scope="module")
def encoded(encoder, parts):
    """Samples to embeddings, by the front end and the encoder."""
    audio = CausalAudio(encoder, LogMel(parts.files.mel), PrefixCache(limit_bytes=2**30))

    @torch.inference_mode()
    def encoded(samples):
        return torch.cat(encoder(audio.prepare(Utterance(samples), ()).windows()))

    return encoded


@pytest.fixture(scope="module")
def engine(checkpoint):
    return loaded(model_id=str(checkpoint), forced_aligner_id="demo")


@pytest.fixture(scope="module")
def recording(speech):
    """Nine seconds that become louder, so that a clamp of the whole clip would change what was before."""
    return (np.resize(speech, 9 * RATE) * np.geomspace(0.003, 1, 9 * RATE)).astype(np.float32)


@pytest.mark.parametrize("samples", [8_000, 8_001, 20_000, 47_999, 48_200, 100_123])
def test_longer_audio_never_changes_a_token_that_was_there(encoded, recording, samples):
    begin, whole = encoded(recording[:samples]), encoded(recording)
    assert len(begin) >= samples // 160 // 8 - 1
    assert_close(whole[: len(begin)], begin, atol=1e-4, rtol=1e-4)


def test_a_pass_that_fails_moves_no_stream(encoder, monkeypatch):
    """The pass may be tried again."""
    clip = CausalClip(encoder, torch.rand(128, 1600))
    windows = clip.windows()
    assert len(windows) == 2
    steps = [encoder.step]
    monkeypatch.setattr(encoder, "step", lambda *args: steps.pop()(*args))  # the second fails
    with torch.inference_mode(), pytest.raises(IndexError):
        encoder(windows)
    assert clip.state.frames == 0


def test_partials_of_a_session_encode_no_frame_twice(engine, encoder, run, recording, monkeypatch):
    """The gain: with the frames of all partials added up it would be four times as many."""
    frames, step = [], CausalEncoder.step
    monkeypatch.setattr(
        CausalEncoder, "step", lambda own, state, mel: frames.append(mel.shape[1]) or step(own, state, mel)
    )
    ends = [int(s * RATE) for s in np.arange(0.7, 8.9, 0.9)]
    for end in ends:
        run(engine, [Utterance(recording[:end], session="grows")])
    assert sum(frames) == encoder.whole_frames((ends[-1] - 200) // 160 + 1)


def test_the_checkpoint_alone_decides(checkpoint, engine, tmp_path):
    """No file of an encoder goes with it: refused at start if it is at hand, else when it is loaded."""
    (option,) = (option for option in engine.info.options if option.name == "causal_encoder")
    assert option.active
    with pytest.raises(ModelUnavailable, match="Only encoders with windows are exported"):
        onnx_export.export(checkpoint, tmp_path / "x", int8=False)
    file, later = tmp_path / "encoder.onnx", tmp_path / "later"
    file.touch()
    with pytest.raises(plan.PlanError, match=r"ENCODER_PATH: .* is tuned for a causal encoder"):
        loaded(model_id=str(checkpoint), encoder_path=str(file))
    made = core.build_engine(planned(probe(), model_id=str(later), encoder_path=str(file)))
    shutil.copytree(checkpoint, later)
    with pytest.raises(ModelUnavailable, match=r"ENCODER_PATH: .* is tuned for a causal encoder"):
        made.load()
