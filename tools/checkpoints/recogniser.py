"""Checkpoints of the released layout with the released vocabulary and random weights: real cost, no meaning.

`python -m tools.checkpoints.recogniser small` makes one and prints its directory. Files, names of tensors, ids and
configuration are those of Qwen3-ASR-0.6B and 1.7B and of the forced aligner; the text of the chat template is the
demonstration model's, which makes the released prompt. "small" is narrow and has two layers: it is made in seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from asr_server import demo
from asr_server.text.languages import model_languages
from tools.checkpoints.vocabulary import (
    AUDIO_END,
    AUDIO_PAD,
    AUDIO_START,
    END_OF_TEXT,
    END_OF_TURN,
    TIMESTAMP,
    added_tokens,
    write_tokenizer,
)

Shape = dict[str, dict[str, int]]

SHAPES: dict[str, Shape] = {
    "small": {
        "audio": {
            "encoder_layers": 2,
            "d_model": 56,
            "encoder_attention_heads": 14,
            "encoder_ffn_dim": 112,
            "downsample_hidden_size": 16,
        },
        "text": {"hidden_size": 16, "intermediate_size": 48, "num_hidden_layers": 2},
    },
    "0.6b": {
        "audio": {"encoder_layers": 18, "d_model": 896, "encoder_attention_heads": 14, "encoder_ffn_dim": 3584},
        "text": {"hidden_size": 1024, "intermediate_size": 3072},
    },
    "1.7b": {
        "audio": {"encoder_layers": 24, "d_model": 1024, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096},
        "text": {"hidden_size": 2048, "intermediate_size": 6144},
    },
}
# The released aligner: the large encoder, the small language model, a head of slots instead of words.
ALIGNER: Shape = {"audio": SHAPES["1.7b"]["audio"], "text": SHAPES["0.6b"]["text"]}
_ALIGNER_TYPE, _SLOTS, _SLOT_MS = "qwen3_forced_aligner", 5_000, 80
_ALIGNER_LANGUAGES = (
    *("Chinese", "English", "Cantonese", "French", "German", "Italian"),
    *("Japanese", "Korean", "Portuguese", "Russian", "Spanish"),
)
_AUDIO = {
    "num_mel_bins": 128,
    "n_window": 50,
    "n_window_infer": 800,
    "conv_chunksize": 500,
    "downsample_hidden_size": 480,
    "max_source_positions": 1500,
}
_TEXT = {
    "vocab_size": 151_936,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 65_536,
    "tie_word_embeddings": True,
    "rope_theta": 1_000_000.0,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]},
}


def random_checkpoint(size: str, device: str = "cpu") -> Path:
    """The directory of a bf16 checkpoint, made on first use: 7 MB for "small", 1.6 GB for "0.6b", 4 GB for "1.7b".
    `device`: where its numbers are made, in seconds on a GPU."""
    return _made(f"recogniser-{size}", released_config(SHAPES[size]), device)


def random_aligner(shape: Shape = ALIGNER, device: str = "cpu") -> Path:
    """The directory of a bf16 checkpoint of an aligner, made on first use: 1.8 GB in the released shape."""
    config = released_config(shape, _ALIGNER_LANGUAGES)
    config["thinker_config"].update(model_type=_ALIGNER_TYPE, classify_num=_SLOTS)
    config["timestamp_segment_time"] = _SLOT_MS
    # Its head has slots, not words.
    for part in (config, config["thinker_config"], config["thinker_config"]["text_config"]):
        part["tie_word_embeddings"] = False
    return _made("aligner", config, device)


def released_tokenizer() -> Path:
    """A directory with the tokenizer files alone, made on first use in a few seconds."""
    directory = Path(tempfile.gettempdir()) / "asr-server-released-tokenizer"
    if not directory.exists():
        fresh = Path(tempfile.mkdtemp(prefix=directory.name))
        write_tokenizer(fresh)
        publish(fresh, directory)
    return directory


def released_config(shape: Shape, languages: tuple[str, ...] = model_languages()) -> dict[str, Any]:
    """The configuration of a released checkpoint with these sizes."""
    ids = {name: number for number, name in added_tokens().items()}
    return {
        "thinker_config": {
            "audio_config": {**_AUDIO, **shape["audio"], "output_dim": shape["text"]["hidden_size"]},
            "text_config": {**_TEXT, **shape["text"]},
            "audio_token_id": ids[AUDIO_PAD],
            "audio_start_token_id": ids[AUDIO_START],
            "audio_end_token_id": ids[AUDIO_END],
        },
        "timestamp_token_id": ids[TIMESTAMP],
        "support_languages": list(languages),
    }


def _made(name: str, config: dict[str, Any], device: str = "cpu") -> Path:
    """The checkpoint of that configuration; another configuration gets another directory."""
    version = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    directory = Path(tempfile.gettempdir()) / f"asr-server-{name}-{version}"
    if not directory.exists():
        fresh = Path(tempfile.mkdtemp(prefix=directory.name))
        shutil.copytree(released_tokenizer(), fresh, dirs_exist_ok=True)
        shutil.copy(demo.checkpoint_path() / "preprocessor_config.json", fresh)
        _write_weights(fresh, config, device)
        template = (demo.checkpoint_path() / "chat_template.jinja").read_text(encoding="utf-8")
        write_json(fresh / "chat_template.json", {"chat_template": template})
        ids = {token: number for number, token in added_tokens().items()}
        ends = {"eos_token_id": [ids[END_OF_TURN], ids[END_OF_TEXT]], "pad_token_id": ids[END_OF_TEXT]}
        write_json(fresh / "generation_config.json", {"do_sample": False, **ends})
        publish(fresh, directory)
    return directory


def publish(fresh: Path, directory: Path) -> None:
    """Give a whole directory its name, unless another process was faster."""
    try:
        os.rename(fresh, directory)
    except OSError:
        shutil.rmtree(fresh)
        if not directory.exists():
            raise


def _write_weights(directory: Path, config: dict[str, Any], device: str) -> None:
    import torch
    from safetensors.torch import save_file

    from asr_server.engine.qwen_asr.loading import PREFIX, Modules

    thinker = {"model_type": "qwen3_asr_thinker", **config["thinker_config"]}
    torch.manual_seed(0)
    with torch.device(device):
        modules = Modules(thinker).to(torch.bfloat16)
    with torch.no_grad():
        for weight in modules.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.02)  # as the SDK begins to train
    if thinker["text_config"]["tie_word_embeddings"]:
        del modules.lm_head
    save_file({PREFIX + name: weight for name, weight in modules.state_dict().items()}, directory / "model.safetensors")
    named = {"architectures": ["Qwen3ASRForConditionalGeneration"], "model_type": "qwen3_asr"}
    write_json(directory / "config.json", {**named, **config, "thinker_config": thinker})


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tools.checkpoints.recogniser", description=__doc__)
    parser.add_argument("size", choices=[*SHAPES, "aligner"])
    chosen = parser.parse_args().size
    print(random_aligner() if chosen == "aligner" else random_checkpoint(chosen))
