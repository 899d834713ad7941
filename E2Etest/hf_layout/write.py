"""Write a bundled checkpoint in the layout of transformers 5, with that library's own classes.

Runs where transformers 5 is first on the path, apart from the server, which has the SDK's transformers 4:
`python write.py SOURCE TARGET`.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3ASRConfig, Qwen3ASRForConditionalGeneration, Qwen3ASRForTokenClassification
from transformers.models.qwen3_asr import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

_AUDIO = ("num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model", "output_dim")
_AUDIO += ("n_window", "n_window_infer", "downsample_hidden_size", "activation_function")
_TEXT = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_TEXT += ("head_dim", "max_position_embeddings", "rms_norm_eps", "vocab_size", "hidden_act", "attention_bias")


def _config(source: dict, aligner: bool) -> Qwen3ASRConfig:
    thinker = source["thinker_config"]
    audio, text = thinker["audio_config"], thinker["text_config"]
    rope = {"rope_type": "default", "rope_theta": text["rope_theta"]}
    return Qwen3ASRConfig(
        audio_config={**{name: audio[name] for name in _AUDIO}, "model_type": "qwen3_asr_encoder"},
        text_config={
            **{name: text[name] for name in _TEXT},
            "model_type": "qwen3",
            "rope_parameters": rope,
            "tie_word_embeddings": not aligner,
        },
        audio_token_id=thinker["audio_token_id"],
        timestamp_token_id=source["timestamp_token_id"],
        pad_token_id=653,
        eos_token_id=[655, 653],
        tie_word_embeddings=not aligner,
        **({"num_labels": thinker["classify_num"]} if aligner else {}),
    )


def _renamed(name: str) -> str:
    name = name.removeprefix("thinker.")
    if name.startswith("lm_head."):
        return name.replace("lm_head.", "score.")  # of the aligner; the recogniser's is its embedding
    if name.startswith("model."):
        return f"model.language_model.{name.removeprefix('model.')}"
    for number in "12":
        name = name.replace(f"audio_tower.proj{number}.", f"multi_modal_projector.linear_{number}.")
    return f"model.{name}"


def main(source: Path, target: Path) -> None:
    """Fails if a weight has no place."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    aligner = "aligner" in config["thinker_config"]["model_type"]
    model = (Qwen3ASRForTokenClassification if aligner else Qwen3ASRForConditionalGeneration)(_config(config, aligner))
    weights = {_renamed(name): value for name, value in load_file(source / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or not set(missing) <= {"lm_head.weight"}:
        raise SystemExit(f"missing {missing}, unexpected {unexpected}")
    model.half().save_pretrained(target)
    Qwen3ASRProcessor(
        Qwen3ASRFeatureExtractor(),
        AutoTokenizer.from_pretrained(source),
        chat_template=(source / "chat_template.jinja").read_text(encoding="utf-8"),
        timestamp_segment_time=config["timestamp_segment_time"],
    ).save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
