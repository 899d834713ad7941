"""Checks the answers on this device: equal to those of the package in float32, and nearly so in 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from asr_server import demo
from asr_server.engine.protocol import Utterance
from E2Etest.drive.recordings import plain_words, word_errors
from tools.bench import engines
from tools.gpu.rig import CLIPS_COUNT, Rig, clips

_CLIPS, _FEW_CLIPS = CLIPS_COUNT, 8
# The promise for formats of 16 bits, whose kernels differ by batch size: texts, and words that differ.
LEAST_EQUAL_TEXTS, MOST_DIFFERENT_WORDS = 0.95, 0.01


def with_package(rig: Rig) -> dict[str, object]:
    """The ids of short clips in float32 are the package's on the same device, alone and in a batch."""
    from tools.sdk import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    spoken = clips(_CLIPS)
    path = demo.checkpoint_path()
    model = Qwen3ASRForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval().to(rig.device)
    processor = Qwen3ASRProcessor.from_pretrained(path, local_files_only=True)
    expected = [_package_ids(model, processor, clip) for clip in spoken]
    found = {}
    for rows in (1, 8):
        engine = rig.engine("demo", dtype="float32", max_batch=rows)
        engine.load()
        ids = [list(hypothesis.ids) for hypothesis in engines.run(engine, [Utterance(clip) for clip in spoken])[0]]
        found[f"equal_with_{rows}_rows"] = sum(a == b for a, b in zip(ids, expected, strict=True))
        engine.unload()
    assert set(found.values()) == {len(spoken)}, found
    return {"clips": len(spoken), **found}


def package_prompt(processor: Any) -> str:
    """Return the prompt of the package for a clip whose language is not known."""
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "audio", "audio": ""}]}]
    prompt: str = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return prompt


def _package_ids(model: Any, processor: Any, clip: np.ndarray) -> list[int]:
    inputs = processor(text=[package_prompt(processor)], audio=[clip], return_tensors="pt", padding=True).to(
        model.device
    )
    ends = model.generation_config.eos_token_id
    with torch.inference_mode():
        out = model.generate(**inputs, max_new_tokens=200, eos_token_id=ends, pad_token_id=ends[0])
    new = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    return [i for i in new if i not in ends]


def eight_clips(rig: Rig) -> dict[str, object]:
    """Texts in bfloat16, all at once, against float32, one at a time; recorded and fused as a server is."""
    spoken = clips(_FEW_CLIPS)
    exact = texts(rig, 1, spoken, dtype="float32", quantize="none")
    return {**compare(texts(rig, _FEW_CLIPS, spoken, dtype="bfloat16", quantize="none"), exact), "texts": exact}


def between_formats(rig: Rig) -> dict[str, object]:
    """Texts in 16 bits against float32, alone and in a batch of eight."""
    spoken = clips(_CLIPS)
    exact = texts(rig, 1, spoken, dtype="float32", quantize="none")
    found: dict[str, object] = {"clips": len(spoken)}
    for dtype in rig.sixteen_bits:
        for rows in (1, 8):
            heard = texts(rig, rows, spoken, dtype=dtype, quantize="none")
            found[f"{dtype}_{rows}_rows"] = compared = compare(heard, exact)
            equal, errors = compared["equal_texts"], compared["different_words"]
            assert equal >= LEAST_EQUAL_TEXTS or errors <= MOST_DIFFERENT_WORDS, found
    return found


def compare(heard: Sequence[str], exact: Sequence[str]) -> dict[str, float]:
    """The share of texts that are equal, and of words that differ."""
    equal = sum(a == b for a, b in zip(heard, exact, strict=True)) / len(exact)
    pairs = [(plain_words(a), plain_words(b)) for a, b in zip(heard, exact, strict=True)]
    errors = sum(word_errors(b, a) for a, b in pairs) / sum(len(b) for _, b in pairs)
    return {"equal_texts": round(equal, 3), "different_words": round(errors, 4)}


def texts(rig: Rig, rows: int, spoken: Sequence[np.ndarray], **chosen: str) -> list[str]:
    """Return the texts of the demonstration model with these settings, `rows` clips at once. Raises `PlanError`."""
    engine = rig.engine("demo", max_batch=rows, **chosen)
    engine.load()
    heard = [hypothesis.text for hypothesis in engines.run(engine, [Utterance(clip) for clip in spoken])[0]]
    engine.unload()
    return heard
