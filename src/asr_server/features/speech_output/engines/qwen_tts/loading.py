"""The parts of a checkpoint of Qwen3-TTS, loaded through the SDK's classes. The only place that knows their names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine import faults
from asr_server.features.speech_output.engines.qwen_tts.checkpoint import CODEC, SpeechCheckpoint
from asr_server.features.speech_output.engines.qwen_tts.sdk import (
    PreTrainedModel,
    Qwen2TokenizerFast,
    Qwen3TTSForConditionalGeneration,
    Qwen3TTSTokenizerV2Model,
)


@dataclass(frozen=True, slots=True, eq=False)
class SpeechModelParts:
    """The parts of a loaded checkpoint."""

    config: Any
    talker: Any  # makes the first code of a frame; `talker.code_predictor` the others
    speaker_encoder: Any  # a recording to the embedding of its voice, None for CustomVoice
    codec: Any  # recordings to frames and frames to samples, in float32
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        found: torch.device = self.talker.codec_head.weight.device
        return found

    @property
    def dtype(self) -> torch.dtype:
        """Return the number format of activations, and of weights that are not in 8 bits."""
        found: torch.dtype = self.talker.codec_head.weight.dtype
        return found


def load(found: SpeechCheckpoint, *, device: str, dtype: torch.dtype) -> SpeechModelParts:
    """Load a checked checkpoint onto `device`, which is prepared, in `dtype`.

    Samples stay in float32: in bfloat16 their rounding is 48 dB below the signal, which can be heard. Raises
    `ModelUnavailable` when files are damaged or weights are missing, `EngineOutOfMemory`.
    """
    directory = found.directory
    try:
        # The regex fix is what the SDK itself asks for.
        tokenizer = Qwen2TokenizerFast.from_pretrained(directory, fix_mistral_regex=True, local_files_only=True)
        model = _load(Qwen3TTSForConditionalGeneration, directory, dtype)
        codec = _load(Qwen3TTSTokenizerV2Model, directory / CODEC, torch.float32)
        for part in (model, codec):
            part.to(device).eval().requires_grad_(False)
    except ModelUnavailable:
        raise
    except Exception as error:  # safetensors, json, tokenizers and transformers each raise their own kinds
        if isinstance(no_memory := faults.failure(error, "the model"), EngineOutOfMemory):
            raise no_memory from error
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} cannot be loaded ({type(error).__name__}); it is damaged or of "
            "another version. Download it again."
        ) from error
    return SpeechModelParts(model.config, model.talker, model.speaker_encoder, codec, tokenizer)


def _load(kind: Any, directory: Path, dtype: torch.dtype) -> Any:
    # The SDK's own `from_pretrained` would load the codec too, and ask the hub for names.
    model, report = PreTrainedModel.from_pretrained.__func__(
        kind, directory, dtype=dtype, output_loading_info=True, local_files_only=True
    )
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills missing weights with random numbers and only warns: that would speak noise.
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {missing[0]}."
        )
    return model
