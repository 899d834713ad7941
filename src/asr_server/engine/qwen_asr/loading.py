"""A checkpoint in torch, loaded through the SDK: on GPUs, and on CPUs where OpenVINO is not used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine import faults
from asr_server.engine.feature import Plan
from asr_server.engine.memory import Limits, plan_capacity
from asr_server.engine.qwen_asr import hf_layout
from asr_server.engine.qwen_asr.decoder import SlotDecoder
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.files import CheckpointFiles, damaged, read
from asr_server.engine.qwen_asr.runtime import LoadedModel, aligner_bytes
from asr_server.engine.qwen_asr.sdk import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration
from asr_server.engine.qwen_asr.windows import LoadedEncoder, WindowedAudio
from asr_server.engine.torch import device as devices
from asr_server.engine.torch import linear, memory
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.linear import MakeLinear
from asr_server.engine.torch.passes import AttentionShape


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
        if isinstance(no_memory := faults.failure(error, "the model"), EngineOutOfMemory):
            raise no_memory from error
        raise damaged(directory, error) from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills missing weights with random numbers and only warns: that would transcribe noise.
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {missing[0]}."
        )
    thinker = model.to(device).eval().requires_grad_(False).thinker
    return Parts(files, thinker.audio_tower, thinker.model, thinker.lm_head)


def model(directory: Path, plan: Plan) -> LoadedModel:
    """Load a checked checkpoint for a plan. Raises what loading raises."""
    dtype, options = devices.prepare(plan.device, plan.dtype, plan.quantize, threads=plan.cpu_threads)
    parts = load(directory, device=plan.device, dtype=dtype)
    layers = linear.layers(plan.quantize, parts.device.type)
    encoder = _encoder(plan, directory, parts, layers.encoder)
    if not encoder.uses_tower:
        parts = replace(parts, tower=nn.Identity())  # its weights are not kept
    limits = Limits(plan.max_batch, plan.kv_budget_mb, aligner_bytes(plan, dtype.itemsize), plan.shares)
    token_bytes = AttentionShape.of(parts.text.config).token_bytes(parts.dtype)
    text = LanguageModel(parts.text, layers.language_model, compiled=plan.is_active("use_torch_compile"))
    weights = memory.addresses(parts.tower, parts.text, parts.head)
    capacity = plan_capacity(plan.device, token_bytes, limits, weights)
    head = layers.head(parts.head.weight) if layers.head else parts.head
    decoder = SlotDecoder(text, head, parts.files.end_ids(), capacity, parts.files.no_speech_id)
    return LoadedModel(
        parts.files,
        encoder,
        decoder,
        capacity,
        (*options, *encoder.options, *layers.options(plan.quantize)),
        (decoder.record_prompts, encoder.encoder.record),
    )


def _encoder(plan: Plan, directory: Path, parts: Parts, make_linear: MakeLinear) -> LoadedEncoder:
    """Return the encoder of a feature, where the plan names one, or the engine's own."""
    added = (feature.encoders for feature in plan.features if feature.encoders is not None)
    loaded = (encoders.load(plan, directory, lambda: (parts, make_linear)) for encoders in added)
    if (found := next(filter(None, loaded), None)) is not None:
        return found
    encoder = WindowedEncoder(parts.tower, make_linear)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder))
