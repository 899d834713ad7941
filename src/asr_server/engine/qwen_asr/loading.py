"""Weights, processor and the ids that matter, loaded through the SDK. The only place that knows its class names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_server.core.errors import EngineOutOfMemory, ModelUnavailable
from asr_server.engine.qwen_asr import hf_layout
from asr_server.engine.qwen_asr.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor
from asr_server.engine.torch import faults


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of a loaded checkpoint."""

    tower: Any  # the audio encoder
    text: Any  # the language model without its head
    head: nn.Linear  # hidden (…, d) to logits (…, vocabulary)
    processor: Any
    end_ids: frozenset[int]  # the tokens that end an answer
    audio_id: int  # the token that stands for audio in a prompt

    @property
    def tokenizer(self) -> Any:
        """Return the processor's tokenizer."""
        return self.processor.tokenizer

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the number format of activations, and of weights that are not in 8 bits."""
        return self.head.weight.dtype


@dataclass(frozen=True, slots=True, eq=False)
class AlignerParts:
    """The parts of a loaded aligner."""

    tower: Any  # the audio encoder
    text: Any  # the language model without its head
    head: nn.Linear  # hidden (…, d) to logits (…, slots)
    processor: Any
    stamp_id: int  # the token at whose places the slots are read
    slot_ms: float  # how long a slot is
    languages: tuple[str, ...]  # the model's names, () where the checkpoint names none


def load(directory: Path, *, device: str, dtype: torch.dtype | str) -> Parts:
    """Load a checked checkpoint directory onto `device`, which is prepared, in `dtype`, "auto" for its own format.

    Weights in their own format are mapped from their files, not read into memory first. Raises `ModelUnavailable` when
    files are damaged or weights are missing, `EngineOutOfMemory`.
    """
    return _parts(*_load(directory, device=device, dtype=dtype))


def load_aligner(directory: Path, *, device: str, dtype: torch.dtype) -> AlignerParts:
    """Load a checked aligner."""
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


def _load(directory: Path, *, device: str, dtype: torch.dtype | str) -> tuple[Any, Any]:
    """Return the SDK's model on its device, and its processor."""
    try:
        layout: dict[str, Any] = {}
        if hf_layout.is_hf(json.loads((directory / "config.json").read_text(encoding="utf-8"))):
            config, processor = hf_layout.load(directory)
            layout = {"config": config, "key_mapping": hf_layout.KEYS}
        else:
            # The regex fix is what the SDK itself asks for; without it some released tokenizers split text differently.
            processor = Qwen3ASRProcessor.from_pretrained(directory, fix_mistral_regex=True, local_files_only=True)
        model, report = Qwen3ASRForConditionalGeneration.from_pretrained(
            directory, dtype=dtype, output_loading_info=True, local_files_only=True, **layout
        )
    except Exception as error:  # safetensors, json, tokenizers and transformers each raise their own kinds
        if isinstance(no_memory := faults.failure(error, "the model"), EngineOutOfMemory):
            raise no_memory from error
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


def _parts(model: Any, processor: Any) -> Parts:
    thinker = model.thinker
    return Parts(
        tower=thinker.audio_tower,
        text=thinker.model,
        head=thinker.lm_head,
        processor=processor,
        end_ids=_end_ids(model, processor.tokenizer),
        audio_id=thinker.config.audio_token_id,
    )


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the end tokens of the generation config. Where it names none, the tokens whose ids the SDK has built
    in."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        vocabulary = tokenizer.get_added_vocab()
        ends = [vocabulary[token] for token in ("<|im_end|>", "<|endoftext|>") if token in vocabulary]
    if not ends and ends != 0:
        raise ModelUnavailable("The checkpoint has no eos_token_id in generation_config.json, and no such token.")
    return frozenset(ends if isinstance(ends, list) else [ends])
