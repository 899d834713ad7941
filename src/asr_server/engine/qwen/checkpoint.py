"""From a model name to a directory that is fit to load, or an error that says what to do. Loads nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asr_server import demo
from asr_server.core.errors import ModelUnavailable

DEMO = "demo"
MODEL_TYPE = "qwen3_asr"
_NEEDED = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer_config.json")


def locate(model_id: str) -> Path:
    """The local directory of a model: the bundled one, a directory given by path, or a hub snapshot (fetched once).

    Raises `ModelUnavailable` when there is none, or when what is there cannot be loaded by the SDK.
    """
    if model_id == DEMO:
        directory = demo.checkpoint_path()
    elif Path(model_id).is_dir():
        directory = Path(model_id)
    elif not is_hub_id(model_id):
        raise ModelUnavailable(f"MODEL_ID={model_id}: there is no such directory, and it is no hub id (owner/name).")
    else:
        directory = _fetch(model_id)
    check(directory, model_id)
    return directory


def is_hub_id(model_id: str) -> bool:
    """Whether a name has the shape owner/name, and is no path."""
    return not model_id.startswith((".", "/", "~")) and model_id.count("/") == 1


def _fetch(model_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model_id))
    except (
        Exception
    ) as error:  # the hub client has dozens of error types; the operator needs the way out, and the cause
        raise ModelUnavailable(
            f"MODEL_ID={model_id}: the checkpoint is not in the local cache and could not be downloaded "
            f"({type(error).__name__}). Check the name and the network, or download it elsewhere and set MODEL_ID "
            "to its directory."
        ) from error


def check(directory: Path, model_id: str) -> None:
    """Raise `ModelUnavailable` unless `directory` holds a complete checkpoint in the layout that the SDK loads."""
    missing = [name for name in _NEEDED if not (directory / name).is_file()]
    if "config.json" in missing:
        raise ModelUnavailable(f"MODEL_ID={model_id}: not a checkpoint, it has no config.json.")
    config = _read_json(directory / "config.json", model_id)
    _check_architecture(config, model_id)
    missing += _missing_weights(directory, model_id)
    if missing:
        raise ModelUnavailable(
            f"MODEL_ID={model_id}: the checkpoint is incomplete, it lacks {', '.join(missing)}. Download it again."
        )


def _check_architecture(config: dict[str, Any], model_id: str) -> None:
    kind = str(config.get("model_type", "unknown"))
    if not kind.startswith(MODEL_TYPE):
        raise ModelUnavailable(
            f"MODEL_ID={model_id}: this is a '{kind}' checkpoint; the server runs Qwen3-ASR ('{MODEL_TYPE}')."
        )
    if "thinker_config" not in config:
        raise ModelUnavailable(
            f"MODEL_ID={model_id}: this checkpoint is in the layout for transformers 5 ('-hf'), which the model's "
            "package does not load. Use the original checkpoint, without '-hf' in its name."
        )
    if "forced_aligner" in str(config["thinker_config"].get("model_type", "")):
        raise ModelUnavailable(f"MODEL_ID={model_id}: this is a forced aligner; it cannot transcribe.")


def _missing_weights(directory: Path, model_id: str) -> list[str]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = set(_read_json(index, model_id).get("weight_map", {}).values())
        return sorted(name for name in shards if not (directory / name).is_file())
    return [] if (directory / "model.safetensors").is_file() else ["model.safetensors"]


def _read_json(path: Path, model_id: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelUnavailable(
            f"MODEL_ID={model_id}: {path.name} is damaged. Download the checkpoint again."
        ) from error
    if not isinstance(content, dict):
        raise ModelUnavailable(f"MODEL_ID={model_id}: {path.name} is damaged. Download the checkpoint again.")
    return content
