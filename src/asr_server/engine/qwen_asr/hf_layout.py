"""Checkpoints in the layout of transformers 5 ("-hf"), read as the SDK reads its own.

The modules are the same. The layout has a flat configuration, other names of weights, the two linear layers after the
encoder outside of it, one file for the processor, and another name for the head of a forced aligner.
"""

from __future__ import annotations

from typing import Any

# Files of this layout in place of preprocessor_config.json.
NEEDED = ("processor_config.json", "tokenizer.json", "chat_template.jinja")
_ALIGNER = "Qwen3ASRForTokenClassification"
# Names of weights, as regular expressions, and the SDK's names for them. If the model has no module "model",
# transformers removes the prefix "model." from all names and ignores weights without it.
KEYS = {
    r"^model\.multi_modal_projector\.linear_([12])\.": r"model.thinker.audio_tower.proj\1.",
    r"^model\.audio_tower\.": "model.thinker.audio_tower.",
    r"^model\.language_model\.": "model.thinker.model.",
    r"^(lm_head|score)\.": "model.thinker.lm_head.",
}


def is_hf(config: dict[str, Any]) -> bool:
    return "thinker_config" not in config and isinstance(config.get("audio_config"), dict)


def is_aligner(config: dict[str, Any]) -> bool:
    return _ALIGNER in (config.get("architectures") or ())


def sdk_config(config: dict[str, Any], processor: dict[str, Any]) -> dict[str, Any]:
    """Return the part of config.json that the server reads, in the SDK's layout. `processor`: the content of
    processor_config.json."""
    text = dict(config["text_config"])
    rope = text.pop("rope_parameters", None) or {}
    text["rope_theta"] = rope.get("rope_theta", text.get("rope_theta", 1_000_000.0))
    # The three parts of a position are equal for text and audio, so it does not matter how they divide the frequencies.
    text["rope_scaling"] = None
    thinker = {
        "audio_config": config["audio_config"],
        "text_config": text,
        "audio_token_id": config["audio_token_id"],
    }
    if is_aligner(config):
        thinker["classify_num"] = len(config.get("id2label") or ()) or config.get("num_labels", 2)
    return {
        "thinker_config": thinker,
        "timestamp_token_id": config.get("timestamp_token_id"),
        "timestamp_segment_time": processor.get("timestamp_segment_time"),
        "support_languages": config.get("support_languages"),
    }
