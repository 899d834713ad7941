"""The modules of a checkpoint in torch, loaded through the SDK. The only place that knows its class names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr import hf_layout
from asr_server.engine.qwen_asr.files import CheckpointFiles, failure, read
from asr_server.engine.qwen_asr.sdk import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of a loaded checkpoint."""

    files: CheckpointFiles
    tower: Any  # the audio encoder
    text: Any  # the language model without its head
    head: nn.Linear  # hidden (…, d) to logits (…, vocabulary), or to time slots

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the number format of activations, and of weights that are not in 8 bits."""
        return self.head.weight.dtype


def load(directory: Path, *, device: str, dtype: torch.dtype | str) -> Parts:
    """Load a checked checkpoint directory onto `device`, which is prepared, in `dtype`, "auto" for its own format.

    Weights in their own format are mapped from their files, not read into memory first. Raises `ModelUnavailable` when
    files are damaged or weights are missing, `EngineOutOfMemory`.
    """
    files = read(directory)
    try:
        model, report = Qwen3ASRForConditionalGeneration.from_pretrained(
            directory,
            config=Qwen3ASRConfig.from_dict(files.config),
            key_mapping=hf_layout.KEYS if files.is_hf else None,
            dtype=dtype,
            output_loading_info=True,
            local_files_only=True,
        )
    except Exception as error:  # safetensors, json and transformers each raise their own kinds
        raise failure(directory, error) from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills missing weights with random numbers and only warns: that would transcribe noise.
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {missing[0]}."
        )
    thinker = model.to(device).eval().requires_grad_(False).thinker
    return Parts(files, thinker.audio_tower, thinker.model, thinker.lm_head)
