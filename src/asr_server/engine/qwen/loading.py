"""Weights, processor and the ids that matter, loaded through the SDK. The only place that knows its class names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen import linear
from asr_server.engine.qwen.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What a loaded checkpoint consists of.

    `tower`: the audio encoder. `text`: the language model without its head. `head`: hidden (…, d) to logits
    (…, vocabulary). `end_ids`: the tokens that end an answer, from the checkpoint's own generation config.
    """

    tower: Any
    text: Any
    head: nn.Linear | linear.Int8Head
    processor: Any
    end_ids: frozenset[int]
    audio_id: int

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer."""
        return self.processor.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The number format of activations, and of weights that are not in 8 bits."""
        return self.head.weight.dtype

    def in_int8(self) -> Parts:
        """The same with linear layers in 8 bits, whose own weights are freed. Those of the head stay: embeddings."""
        linear.quantize(self.tower)
        linear.quantize(self.text)
        return replace(self, head=linear.Int8Head(self.head.weight))


@dataclass(frozen=True, slots=True, eq=False)
class AlignerParts:
    """What a loaded aligner consists of.

    `head`: hidden (…, d) to logits (…, slots), each slot `slot_ms` long. `stamp_id`: the token at whose places the
    slots are read. `languages`: the model's names, () where the checkpoint names none.
    """

    tower: Any
    text: Any
    head: nn.Linear
    processor: Any
    stamp_id: int
    slot_ms: float
    languages: tuple[str, ...]


def load(directory: Path, *, device: str, dtype: str) -> Parts:
    """Load a checked checkpoint directory onto `device` in `dtype` ("float32", "bfloat16", "float16").

    Raises `ModelUnavailable` when files are damaged, weights are missing, or the device is not there.
    """
    return _parts(*_load(directory, device=device, dtype=dtype))


def load_aligner(directory: Path, *, device: str, dtype: str) -> AlignerParts:
    """The same for a checked aligner."""
    model, processor = _load(directory, device=device, dtype=dtype)
    config, thinker = model.config, model.thinker
    stamp_id, slot_ms = getattr(config, "timestamp_token_id", None), getattr(config, "timestamp_segment_time", None)
    if stamp_id is None or not slot_ms or thinker.lm_head.out_features != getattr(thinker.config, "classify_num", None):
        raise ModelUnavailable(
            f"The aligner in {directory.name} does not say what its time slots are; it is of another version."
        )
    return AlignerParts(
        tower=thinker.audio_tower,
        text=thinker.model,
        head=thinker.lm_head,
        processor=processor,
        stamp_id=int(stamp_id),
        slot_ms=float(slot_ms),
        languages=tuple(config.support_languages or ()),
    )


def _load(directory: Path, *, device: str, dtype: str) -> tuple[Any, Any]:
    """The SDK's model on its device, and its processor."""
    _check_device(device)
    _tune(device)
    try:
        model, report = Qwen3ASRForConditionalGeneration.from_pretrained(
            directory, dtype=getattr(torch, dtype), output_loading_info=True, local_files_only=True
        )
        # The regex fix is what the SDK itself asks for; without it some released tokenizers split text differently.
        processor = Qwen3ASRProcessor.from_pretrained(directory, fix_mistral_regex=True, local_files_only=True)
    except Exception as error:  # safetensors, json, tokenizers and transformers each raise their own kinds
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} cannot be loaded ({type(error).__name__}); it is damaged or of "
            "another version. Download it again."
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        # transformers fills missing weights with random numbers and only warns: that would transcribe noise.
        raise ModelUnavailable(
            f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {missing[0]}."
        )
    return model.to(device).eval().requires_grad_(False), processor


def _check_device(device: str) -> None:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelUnavailable(
            f"DEVICE={device}: this torch build ({torch.__version__}) or driver offers no CUDA. Install "
            "requirements-gpu.txt and check the driver, or set DEVICE=cpu."
        )


def _tune(device: str) -> None:
    """Process-wide switches of a GPU: TF32 where float32 is left, and the fastest convolution for each shape."""
    if device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True


def _parts(model: Any, processor: Any) -> Parts:
    thinker = model.thinker
    ends = model.generation_config.eos_token_id
    if ends is None:
        raise ModelUnavailable("The checkpoint's generation_config.json has no eos_token_id.")
    return Parts(
        tower=thinker.audio_tower,
        text=thinker.model,
        head=thinker.lm_head,
        processor=processor,
        end_ids=frozenset(ends if isinstance(ends, list) else [ends]),
        audio_id=thinker.config.audio_token_id,
    )
