"""Weights that lie in memory, and those that are mapped from their files."""

import pytest
import torch

from asr_server import demo
from asr_server.engine.qwen_asr import loading
from asr_server.engine.torch import memory

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("dtype", "mapped"), [(torch.float32, False), (torch.float16, True)])
def test_weights_in_their_own_format_are_mapped_and_counted(dtype, mapped):
    """The kernel calls pages of a mapped file free, so the plan has to leave room for them; converted ones are ours."""
    parts = loading.load(demo.checkpoint_path(), device="cpu", dtype=dtype)
    counted = memory.mapped_bytes(parts.tower, parts.text, parts.head)
    size = (demo.checkpoint_path() / "model.safetensors").stat().st_size
    assert counted == (pytest.approx(size, rel=0.1) if mapped else 0)
