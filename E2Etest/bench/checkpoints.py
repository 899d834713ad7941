"""Checkpoints of the released shapes with random weights: real cost, no meaning. Made once, kept outside the tree.

Shapes of Qwen3-ASR-0.6B and 1.7B as published: encoder 18 x 896 and 24 x 1024, language model 28 x 1024 and 28 x
2048; of the forced aligner: encoder 24 x 1024, language model 28 x 1024, 5000 slots of 80 ms. The tokenizer is the
demonstration model's, whose ids are all that the benchmarks need.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from asr_server import demo

SHAPES = {
    "0.6b": {
        "audio": {"encoder_layers": 18, "d_model": 896, "encoder_attention_heads": 14, "encoder_ffn_dim": 3584},
        "text": {"hidden_size": 1024, "intermediate_size": 3072},
    },
    "1.7b": {
        "audio": {"encoder_layers": 24, "d_model": 1024, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096},
        "text": {"hidden_size": 2048, "intermediate_size": 6144},
    },
}
_TEXT = {
    "vocab_size": 151_936,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 65_536,
    "rope_theta": 1_000_000.0,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}
_AUDIO = {"downsample_hidden_size": 480, "conv_chunksize": 500}


# The released aligner: the large encoder, the small language model, a head of slots instead of words.
ALIGNER = {"audio": SHAPES["1.7b"]["audio"], "text": SHAPES["0.6b"]["text"]}
_SLOTS, _SLOT_MS = 5_000, 80


def random_checkpoint(shape: str) -> Path:
    """The directory of a bf16 checkpoint of that shape, made on first use (1.6 GB for 0.6b)."""
    directory = Path(tempfile.gettempdir()) / f"asr-server-bench-{shape}"
    if not (directory / "model.safetensors").exists():
        config = _started(directory, demo.checkpoint_path(), SHAPES[shape])
        end_ids = (directory / "generation_config.json").read_text()
        _save(directory, config)
        (directory / "generation_config.json").write_text(end_ids)
    return directory


def random_aligner() -> Path:
    """The directory of a bf16 checkpoint of the released aligner's shape, made on first use (1.8 GB)."""
    directory = Path(tempfile.gettempdir()) / "asr-server-bench-aligner"
    if not (directory / "model.safetensors").exists():
        config = _started(directory, demo.aligner_path(), ALIGNER)
        config["timestamp_segment_time"], config["thinker_config"]["classify_num"] = _SLOT_MS, _SLOTS
        _save(directory, config)
        # The SDK does not write what tells an aligner from a recogniser.
        written = json.loads((directory / "config.json").read_text())
        written["thinker_config"]["model_type"] = config["thinker_config"]["model_type"]
        (directory / "config.json").write_text(json.dumps(written))
    return directory


def _started(directory: Path, bundled: Path, shape: dict[str, dict[str, int]]) -> dict[str, Any]:
    """The bundled checkpoint without its weights in `directory`; its configuration with another shape."""
    shutil.copytree(bundled, directory, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    config["thinker_config"]["audio_config"].update(_AUDIO, **shape["audio"], output_dim=shape["text"]["hidden_size"])
    config["thinker_config"]["text_config"].update(_TEXT, **shape["text"])
    config["thinker_config"]["text_config"].pop("layer_types", None)
    return config


def _save(directory: Path, config: dict[str, Any]) -> None:
    import torch
    from qwen_asr.core.transformers_backend import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

    torch.manual_seed(0)
    model = Qwen3ASRForConditionalGeneration(Qwen3ASRConfig(**config)).to(torch.bfloat16)
    model.save_pretrained(directory)
