"""The memory that a model of Qwen3-TTS will take, estimated before it is loaded. Reads no weights."""

from __future__ import annotations

from pathlib import Path

import torch

from asr_server.engine.qwen import memory
from asr_server.engine.qwen.footprint import PASS_BYTES, parameters
from asr_server.engine.speech.qwen.checkpoint import CODEC
from asr_server.engine.speech.qwen.model import SpeechModel


def fits(directory: Path, model: SpeechModel) -> bool:
    """True if the model seems to fit into the free memory. The codec is in float32."""
    # In 8 bits the layers are there twice while they are made, which is as much as once in 16 bits.
    item_bytes = 4 if model.dtype == "float32" and not model.quantize else 2
    needed = parameters(directory) * item_bytes + parameters(directory / CODEC) * 4 + PASS_BYTES
    return memory.free_bytes(torch.device(model.device)) >= needed
