"""Checkpoints of the layout of Qwen3-TTS (12 Hz) with random weights: real cost, no meaning.

`python -m tools.checkpoints.speech small` makes one and prints its directory. Configuration, ids and names
of tensors are those of the released CustomVoice and Base checkpoints, as far as the SDK's classes and public ports of
the model state them. "small" is narrow and is made in seconds. The variance of its weights is such that codes and
samples vary, and that sentences end after some tens of frames.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tools.checkpoints.recogniser import publish, released_tokenizer, write_json

CUSTOM_VOICE, BASE = "custom_voice", "base"
# Of `tts_model_size` in config.json.
SIZES = {"small": "0b6", "0.6b": "0b6", "1.7b": "1b7"}
_END_ID = 2150
_LANGUAGES = {
    **{"english": 2050, "german": 2053, "spanish": 2054, "chinese": 2055, "japanese": 2058, "french": 2061},
    **{"sichuan_dialect": 2062, "korean": 2064, "russian": 2069, "italian": 2070, "portuguese": 2071},
    "beijing_dialect": 2074,
}
_SPEAKERS = {
    **{"aiden": 2861, "sohee": 2864, "ono_anna": 2873, "eric": 2875, "dylan": 2878, "uncle_fu": 3010},
    **{"ryan": 3061, "vivian": 3065, "serena": 3066},
}
_DIALECTS = {"eric": "sichuan_dialect", "dylan": "beijing_dialect"}
_TALKER = {
    "vocab_size": 3072,
    "text_vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000,
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": _END_ID,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "codec_language_id": _LANGUAGES,
}
_WIDE = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
_PREDICTOR = {"vocab_size": 2048, "max_position_embeddings": 65_536, "rope_theta": 1_000_000}
_RELEASED_TALKER = {"num_hidden_layers": 28, "text_hidden_size": 2048, **_WIDE}
_RELEASED_PREDICTOR = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5, **_WIDE}
_RELEASED_SECTIONS = [24, 20, 20]
_CODEC = {"codebook_size": 2048, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2]}
_RELEASED_CODEC = {
    "decoder": {
        **{"latent_dim": 1024, "codebook_dim": 512, "decoder_dim": 1536, "hidden_size": 512, "head_dim": 64},
        **{"intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16},
        "sliding_window": 72,
    },
    # The rest are the defaults of transformers' Mimi.
    "encoder": {"num_quantizers": 32, "use_causal_conv": True},
}
_SMALL_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        # A pass for each codebook but the first is most of the time of a small frame.
        "codebooks": 4,
        "talker": {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "text_hidden_size": 24}
        | _SMALL_HEADS,
        "sections": [4, 2, 2],
        "predictor": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | _SMALL_HEADS,
        # A short window, so that a stream would differ from the whole if it began anew too late.
        "decoder": {
            **{"latent_dim": 32, "codebook_dim": 16, "decoder_dim": 64, "hidden_size": 24, "head_dim": 12},
            **{"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2},
            "sliding_window": 6,
        },
        "encoder": {
            **{"hidden_size": 32, "num_filters": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16},
            **{"num_key_value_heads": 2, "intermediate_size": 64, "codebook_dim": 16, "num_quantizers": 32},
            **{"vector_quantization_hidden_dimension": 16, "upsample_groups": 32, "use_causal_conv": True},
        },
        "speaker": {
            **{"enc_dim": 48, "enc_channels": [16, 16, 16, 16, 48], "enc_attention_channels": 8},
            "enc_se_channels": 8,
        },
    },
    "0.6b": {
        "codebooks": 16,
        "talker": {"hidden_size": 1024, "intermediate_size": 3072} | _RELEASED_TALKER,
        "sections": _RELEASED_SECTIONS,
        "predictor": _RELEASED_PREDICTOR,
        **_RELEASED_CODEC,
        "speaker": {"enc_dim": 1024},
    },
    "1.7b": {
        "codebooks": 16,
        "talker": {"hidden_size": 2048, "intermediate_size": 6144} | _RELEASED_TALKER,
        "sections": _RELEASED_SECTIONS,
        "predictor": _RELEASED_PREDICTOR,
        **_RELEASED_CODEC,
        "speaker": {"enc_dim": 2048},
    },
}
GENERATION = {
    **{"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50},
    **{"subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0, "subtalker_top_k": 50},
    "max_new_tokens": 8192,
}


def random_speech_checkpoint(size: str, kind: str = CUSTOM_VOICE) -> Path:
    """The directory of a checkpoint, made on first use: bf16, "small" in float32 and 20 MB.

    `kind`: `CUSTOM_VOICE` or `BASE`.
    """
    configs = _config(size, kind), _codec_config(size)
    version = hashlib.sha256(json.dumps([_VERSION, *configs], sort_keys=True).encode()).hexdigest()[:8]
    directory = Path(tempfile.gettempdir()) / f"asr-server-speech-{size}-{kind}-{version}"
    if not directory.exists():
        fresh = Path(tempfile.mkdtemp(prefix=directory.name))
        shutil.copytree(released_tokenizer(), fresh, dirs_exist_ok=True)
        tokenizer = json.loads((fresh / "tokenizer_config.json").read_text(encoding="utf-8"))
        write_json(fresh / "tokenizer_config.json", {**tokenizer, "processor_class": "Qwen3TTSProcessor"})
        _write_weights(fresh, *configs, small=size == "small")
        write_json(fresh / "generation_config.json", GENERATION)
        publish(fresh, directory)
    return directory


# Of how the weights are made.
_VERSION = 3


def _config(size: str, kind: str) -> dict[str, Any]:
    shape, named = SHAPES[size], kind == CUSTOM_VOICE
    talker = {
        **_TALKER,
        **shape["talker"],
        "num_code_groups": shape["codebooks"],
        "rope_scaling": {"rope_type": "default", "interleaved": True, "mrope_section": shape["sections"]},
        "spk_id": _SPEAKERS if named else {},
        "spk_is_dialect": {name: _DIALECTS.get(name, False) for name in _SPEAKERS} if named else {},
        "code_predictor_config": {**_PREDICTOR, **shape["predictor"], "num_code_groups": shape["codebooks"]},
    }
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "talker_config": talker,
        "speaker_encoder_config": shape["speaker"],
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": SIZES[size],
        "tts_model_type": kind,
    }


def _codec_config(size: str) -> dict[str, Any]:
    shape = SHAPES[size]
    count = shape["codebooks"]
    return {
        "decoder_config": {**_CODEC, **shape["decoder"], "num_quantizers": count},
        "encoder_config": shape["encoder"],
        "encoder_valid_num_quantizers": count,
    }


def _write_weights(directory: Path, config: dict[str, Any], codec_config: dict[str, Any], *, small: bool) -> None:
    import torch

    from asr_server.features.speech_output.engines.qwen_tts.sdk import (
        Qwen3TTSConfig,
        Qwen3TTSForConditionalGeneration,
        Qwen3TTSTokenizerV2Config,
        Qwen3TTSTokenizerV2Model,
    )

    torch.manual_seed(0)
    dtype = torch.float32 if small else torch.bfloat16
    codec = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**codec_config))
    model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**config))
    with torch.no_grad():
        for part in (codec, model):
            for name, weight in part.named_parameters():
                _fill(name, weight)
        # A code that ends the sentence is the likeliest now and then.
        model.talker.codec_head.weight[_END_ID] *= 2
        _set_loudness(codec.decoder)
    codec.to(dtype).save_pretrained(directory / "speech_tokenizer")
    model.to(dtype).save_pretrained(directory)
    # What transformers writes of the speaker encoder is not what the SDK reads.
    write_json(directory / "config.json", config)
    features = {"feature_extractor_type": "EncodecFeatureExtractor", "feature_size": 1, "sampling_rate": 24_000}
    write_json(directory / "speech_tokenizer" / "preprocessor_config.json", features)


def _set_loudness(decoder: Any) -> None:
    """Samples that are seldom cut at -1 and 1, where all numbers would be equal."""
    import torch

    last = decoder.decoder[-1].conv
    last.bias.zero_()
    last.weight *= 1e-3
    codes = torch.randint(decoder.config.codebook_size, (1, decoder.config.num_quantizers, 8))
    last.weight *= 0.2 / decoder(codes).std()


def _fill(name: str, weight: Any) -> None:
    """Values of a size that keeps activations at about one."""
    if weight.dim() > 1:
        embeds = "embedding" in name or "embed" in name
        weight.normal_(std=1.0 if embeds else weight[0].numel() ** -0.5)
    elif name.endswith("bias"):
        weight.normal_(std=0.1)
    elif name.endswith((".alpha", ".beta", "cluster_usage")):
        return
    else:  # weights of norms, scales of layers
        weight.uniform_(0.5, 1.0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="tools.checkpoints.speech", description=__doc__)
    parser.add_argument("size", choices=list(SHAPES))
    parser.add_argument("kind", choices=[CUSTOM_VOICE, BASE], nargs="?", default=CUSTOM_VOICE)
    arguments = parser.parse_args()
    print(random_speech_checkpoint(arguments.size, arguments.kind))
