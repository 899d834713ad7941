"""The windowed encoder against the SDK's own forward pass."""

import copy
import sys

import pytest
import torch
from torch.testing import assert_close

from asr_server import demo
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.torch.passes_test import traced
from tools.sdk import Qwen3ASRForConditionalGeneration

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

sdk = sys.modules[Qwen3ASRForConditionalGeneration.__module__]

LENGTHS = [50, 99, 100, 101, 250, 800, 801, 1000, 2150]


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def tower(request):
    model = sdk.Qwen3ASRForConditionalGeneration.from_pretrained(
        demo.checkpoint_path(), dtype=torch.float32, attn_implementation=request.param
    )
    return model.thinker.audio_tower.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encode(tower):
    """Clips (128, T) to their embeddings, all windows in one batch. The tower itself keeps its layers."""
    encoder = WindowedEncoder(copy.deepcopy(tower))

    def encode(mels):
        windows = [encoder.windows(mel) for mel in mels]
        encoded = iter(encoder([window for own in windows for window in own]))
        return [torch.cat([next(encoded) for _ in own]) for own in windows]

    return encode


def _mel(frames):
    return torch.randn(128, frames, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("frames", LENGTHS)
def test_it_equals_the_sdk_with_true_windows(tower, encode, monkeypatch, frames):
    """Any length, under SDPA and eager; as many tokens as prompts have room for. The SDK never makes its mask."""
    mel = _mel(frames)
    (ours,) = encode([mel])
    assert WindowedEncoder(copy.deepcopy(tower)).tokens(frames) == len(ours)
    original = sdk.Qwen3ASRAudioEncoderLayer.forward

    def with_mask(layer, hidden, cu_seqlens, **_):
        window = torch.bucketize(torch.arange(len(hidden)), cu_seqlens, right=True)
        hidden_from = window[:, None] != window
        mask = torch.zeros(1, 1, *hidden_from.shape).masked_fill(hidden_from, torch.finfo(hidden.dtype).min)
        return original(layer, hidden, cu_seqlens, attention_mask=mask)

    monkeypatch.setattr(sdk.Qwen3ASRAudioEncoderLayer, "forward", with_mask)
    expected = tower(mel, feature_lens=torch.tensor([frames])).last_hidden_state
    assert_close(ours, expected, atol=2e-4, rtol=1e-4)


def test_recorded_passes_encode_as_others_do(tower, encode, monkeypatch):
    """Windows of all lengths, more than are recorded together: what is replayed is padded, and nobody sees that."""
    monkeypatch.setattr("asr_server.engine.qwen_asr.encoder.RECORDED_WINDOWS", (4, 2))
    encoder = WindowedEncoder(copy.deepcopy(tower))
    assert encoder.record(traced, lambda: None) == 2
    monkeypatch.setattr(encoder, "embeddings", None)  # only what was recorded computes
    for lengths in (LENGTHS, LENGTHS[:2], LENGTHS[3:4]):
        found = iter(encoder([window for n in lengths for window in encoder.windows(_mel(n))]))
        for frames, expected in zip(lengths, encode([_mel(n) for n in lengths]), strict=True):
            got = torch.cat([next(found) for _ in encoder.windows(_mel(frames))])
            assert_close(got, expected, atol=2e-5, rtol=1e-4)
