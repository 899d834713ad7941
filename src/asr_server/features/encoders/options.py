"""The choice of the encoder: the engine's own, one from a file, or a causal one. Loads nothing.

What only the files of the checkpoint can tell is checked when it is loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asr_server import demo
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Asked
from asr_server.engine.gpu import Build
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr.checkpoint import DEMO

# The key of the encoder's configuration that tells a checkpoint tuned for a causal encoder from others.
CAUSAL_KEY = "causal_left_tokens"

_FILE_REASON = "compared with torch's encoder when the model is loaded"
# Measured on the 0.6B's shape, a partial each second of an utterance of 20 s, two cores (2026-11-23).
_CAUSAL_REASON = "live audio is encoded once: a fifth of the frames, and a partial takes half of the processor's time"
_OWN = "not set; the engine's own encoder is used"
_NOT_TUNED = "not set; for checkpoints tuned for it, which the released ones are not"


def resolve(asked: Asked, device: str) -> tuple[tuple[Option, ...], list[str]]:
    """Return the three options and why what was asked for cannot run."""
    settings, capabilities, conflicts, torch = asked.settings, asked.capabilities, list[str](), bool(device)
    wanted = {
        "ONNX_ENCODER_PATH": settings.onnx_encoder_path,
        "TRT_ENCODER_PATH": settings.trt_encoder_path,
        "USE_CAUSAL_ENCODER": "true" if settings.use_causal_encoder else "",
    }
    named = [name for name, value in wanted.items() if value]
    if not torch:
        conflicts += (f"{name} is for Qwen3-ASR, and MODEL_ID={settings.model_id} is none: unset it." for name in named)
    elif named and not capabilities.torch:
        conflicts.append(f"{named[0]} needs torch, which is not installed: pip install '.[gpu]', or unset it.")
    elif len(named) > 1:
        conflicts.append(f"{' and '.join(named)} exclude each other: each is another encoder. Set one.")
    for name in ("ONNX_ENCODER_PATH", "TRT_ENCODER_PATH"):
        if wanted[name] and not Path(wanted[name]).is_file():
            conflicts.append(f"{name}={wanted[name]}: there is no such file.")
    gpu = device.startswith("cuda")
    if settings.onnx_encoder_path and gpu and "onnxruntime-gpu" not in capabilities.packages:
        conflicts.append("ONNX_ENCODER_PATH on a GPU needs the package onnxruntime-gpu in place of onnxruntime.")
    if torch and (problem := causal_problem(settings.model_id, wanted=settings.use_causal_encoder)):
        conflicts.append(problem)
    if settings.trt_encoder_path:
        conflicts += _tensorrt_conflicts(gpu, capabilities)
    options = (
        _option("onnx_encoder_path", settings.onnx_encoder_path, _FILE_REASON, _OWN),
        _option("trt_encoder_path", settings.trt_encoder_path, _FILE_REASON, _OWN),
        _option("use_causal_encoder", wanted["USE_CAUSAL_ENCODER"], _CAUSAL_REASON, _NOT_TUNED),
    )
    return options, conflicts


def causal_problem(model_id: str, directory: Path | None = None, *, wanted: bool) -> str:
    """Return why the checkpoint and USE_CAUSAL_ENCODER do not fit; "" if they do or if its files are not here yet."""
    directory = directory or (demo.checkpoint_path() if model_id == DEMO else Path(model_id))
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        tuned = _audio_config(config).get(CAUSAL_KEY) is not None
    except (OSError, ValueError, AttributeError):
        return ""
    if tuned and not wanted:
        return f"MODEL_ID={model_id} is tuned for a causal encoder ({CAUSAL_KEY}): set USE_CAUSAL_ENCODER=true."
    if wanted and not tuned:
        return (
            f"USE_CAUSAL_ENCODER: MODEL_ID={model_id} is not tuned for it (its configuration has no {CAUSAL_KEY}), and "
            "an encoder that was trained to hear ahead makes many more errors without: unset it."
        )
    return ""


def _audio_config(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config.get("thinker_config", config).get("audio_config", {})
    return found


def _tensorrt_conflicts(gpu: bool, capabilities: Capabilities) -> list[str]:
    lacks = ["the model does not run on an NVIDIA GPU"] * (not gpu or capabilities.gpus.build is Build.ROCM)
    lacks += ["the package tensorrt is not installed"] * ("tensorrt" not in capabilities.packages)
    return [f"TRT_ENCODER_PATH: {' and '.join(lacks)}; unset it."] if lacks else []


def _option(name: str, value: str, active: str, inactive: str) -> Option:
    return Option(name, bool(value), value, active if value else inactive)
