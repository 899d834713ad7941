"""A checkpoint of Qwen3-ASR in torch: on GPUs, and on CPUs where OpenVINO is not used."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from asr_server.engine.feature import Plan
from asr_server.engine.memory import Limits, plan_capacity
from asr_server.engine.qwen_asr import loading
from asr_server.engine.qwen_asr.decoder import SlotDecoder
from asr_server.engine.qwen_asr.encoder import WindowedEncoder
from asr_server.engine.qwen_asr.loading import Parts
from asr_server.engine.qwen_asr.runtime import LoadedModel, aligner_bytes
from asr_server.engine.qwen_asr.windows import LoadedEncoder, WindowedAudio
from asr_server.engine.torch import device, linear, memory
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.linear import MakeLinear
from asr_server.engine.torch.passes import AttentionShape


def load(directory: Path, plan: Plan) -> LoadedModel:
    """Load a checked checkpoint. Raises what loading raises."""
    dtype, options = device.prepare(plan.device, plan.dtype, plan.quantize, threads=plan.cpu_threads)
    parts = loading.load(directory, device=plan.device, dtype=dtype)
    layers = linear.layers(plan.quantize)
    encoder = _encoder(plan, directory, parts, layers.encoder)
    if not encoder.uses_tower:
        parts = replace(parts, tower=nn.Identity())  # its weights are not kept
    limits = Limits(plan.max_batch, plan.kv_budget_mb, aligner_bytes(plan, dtype.itemsize), plan.shares)
    token_bytes = AttentionShape.of(parts.text.config).token_bytes(parts.dtype)
    text = LanguageModel(parts.text, layers.language_model, compiled=plan.is_active("use_torch_compile"))
    weights = memory.addresses(parts.tower, parts.text, parts.head)
    capacity = plan_capacity(plan.device, token_bytes, limits, weights)
    decoder = SlotDecoder(text, parts.head, parts.files.end_ids(), capacity, parts.files.no_speech_id)
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
