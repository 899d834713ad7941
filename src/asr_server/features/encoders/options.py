"""The choice of the encoder: the engine's own, one from a file, or a causal one. Loads nothing.

What only the files of the checkpoint can tell is checked when it is loaded.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from asr_server import demo
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
_NOT_TUNED = "for checkpoints that are tuned for it, which the released ones are not"
CAUSAL = Option("causal_encoder", True, "", _CAUSAL_REASON)


def resolve(asked: Asked, device: str) -> tuple[tuple[Option, ...], list[str]]:
    """Return the three options and why what was asked for cannot run."""
    settings, capabilities, conflicts, gpu = asked.settings, asked.capabilities, list[str](), device.startswith("cuda")
    onnx, tensorrt = settings.onnx_encoder_path, settings.trt_encoder_path
    wanted = {"ONNX_ENCODER_PATH": onnx, "TRT_ENCODER_PATH": tensorrt}
    named = [name for name, value in wanted.items() if value]
    is_causal = tuned_for_causal(demo.checkpoint_path() if settings.model_id == DEMO else Path(settings.model_id))
    if not device:
        conflicts += (f"{name} is for Qwen3-ASR, and MODEL_ID={settings.model_id} is none: unset it." for name in named)
    elif named and not capabilities.torch:
        conflicts.append(f"{named[0]} needs torch, which is not installed: pip install '.[gpu]', or unset it.")
    elif is_causal and not capabilities.torch:
        conflicts.append(no_torch(settings.model_id))
    elif named and is_causal:
        conflicts.append(causal_problem(settings.model_id, named[0]))
    elif len(named) > 1:
        conflicts.append(f"{' and '.join(named)} exclude each other: each is another encoder. Set one.")
    files = [name for name in named if not Path(wanted[name]).is_file()]
    conflicts += (f"{name}={wanted[name]}: there is no such file." for name in files)
    if onnx and gpu and "onnxruntime-gpu" not in capabilities.packages:
        conflicts.append("ONNX_ENCODER_PATH on a GPU needs the package onnxruntime-gpu in place of onnxruntime.")
    lacks = ["the model does not run on an NVIDIA GPU"] * (not gpu or capabilities.gpus.build is Build.ROCM)
    lacks += ["the package tensorrt is not installed"] * ("tensorrt" not in capabilities.packages)
    if tensorrt and lacks:
        conflicts.append(f"TRT_ENCODER_PATH: {' and '.join(lacks)}; unset it.")
    options = (
        Option(name.lower(), bool(value), value, _FILE_REASON if value else _OWN) for name, value in wanted.items()
    )
    return (*options, CAUSAL if is_causal else replace(CAUSAL, active=False, reason=_NOT_TUNED)), conflicts


def tuned_for_causal(directory: Path) -> bool:
    """Return True if the checkpoint is tuned for a causal encoder; False also if its files are not here yet."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return config.get("thinker_config", config).get("audio_config", {}).get(CAUSAL_KEY) is not None
    except (OSError, ValueError, AttributeError):
        return False


def no_torch(model_id: str) -> str:
    return f"MODEL_ID={model_id} is tuned for a causal encoder, which needs torch: pip install '.[gpu]'."


def causal_problem(model_id: str, name: str) -> str:
    return f"{name}: MODEL_ID={model_id} is tuned for a causal encoder ({CAUSAL_KEY}), which no file holds: unset it."
