"""The choice of the encoder: the engine's own, one from a file, or a causal one. Loads nothing.

Facts that only the files of the checkpoint show are checked when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from asr_server import demo
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Asked
from asr_server.engine.gpu import Build
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr.checkpoint import DEMO

# The key of the encoder's configuration that marks a checkpoint tuned for a causal encoder.
CAUSAL_KEY = "causal_left_tokens"
# A file for TensorRT begins with a line of this and JSON. Its own format has no place for the origin of the engine.
TENSORRT_MAGIC = b"asr-server encoder "

_FILE_REASON = "compared with torch's encoder when the model is loaded"
# Measured on the 0.6B's shape, a partial each second of an utterance of 20 s, two cores (2026-11-23).
_CAUSAL_REASON = "live audio is encoded once: a fifth of the frames, and a partial takes half of the processor's time"
_OWN = "not set; the engine's own encoder is used"
_NOT_TUNED = "for checkpoints that are tuned for it, which the released ones are not"
CAUSAL = Option("causal_encoder", True, "", _CAUSAL_REASON)


def resolve(asked: Asked, device: str) -> tuple[tuple[Option, ...], list[str]]:
    """Return the two options, and sentences about requested options that cannot run."""
    settings, capabilities, conflicts = asked.settings, asked.capabilities, list[str]()
    file = settings.encoder_path
    is_causal = tuned_for_causal(demo.checkpoint_path() if settings.model_id == DEMO else Path(settings.model_id))
    if file and not device:
        conflicts.append(f"ENCODER_PATH is for Qwen3-ASR, and MODEL_ID={settings.model_id} is none: unset it.")
    elif file and not capabilities.torch:
        conflicts.append("ENCODER_PATH needs torch, which is not installed: pip install '.[gpu]', or unset it.")
    elif device and is_causal and not capabilities.torch:
        conflicts.append(no_torch(settings.model_id))
    elif file and is_causal:
        conflicts.append(causal_problem(settings.model_id))
    if file:
        conflicts += _file_conflicts(Path(file), capabilities, on_gpu=device.startswith("cuda"))
    encoder = Option("encoder_path", bool(file), file, _FILE_REASON if file else _OWN)
    return (encoder, CAUSAL if is_causal else replace(CAUSAL, active=False, reason=_NOT_TUNED)), conflicts


def _file_conflicts(file: Path, capabilities: Capabilities, *, on_gpu: bool) -> Iterator[str]:
    if not file.is_file():
        yield f"ENCODER_PATH={file}: there is no such file."
    elif is_tensorrt(file):
        lacks = ["the model does not run on an NVIDIA GPU"] * (not on_gpu or capabilities.gpus.build is Build.ROCM)
        lacks += ["the package tensorrt is not installed"] * ("tensorrt" not in capabilities.packages)
        if lacks:
            yield f"ENCODER_PATH={file} is for TensorRT, and {' and '.join(lacks)}; unset it."
    elif on_gpu and "onnxruntime-gpu" not in capabilities.packages:
        yield f"ENCODER_PATH={file} on a GPU needs the package onnxruntime-gpu in place of onnxruntime."


def is_tensorrt(file: Path) -> bool:
    """Return True for a file of `asr-server export tensorrt`; False also if it cannot be read."""
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(len(TENSORRT_MAGIC)) == TENSORRT_MAGIC
    return False


def tuned_for_causal(directory: Path) -> bool:
    """Return True if the checkpoint is tuned for a causal encoder; False also if its files are not here yet."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return config.get("thinker_config", config).get("audio_config", {}).get(CAUSAL_KEY) is not None
    except (OSError, ValueError, AttributeError):
        return False


def no_torch(model_id: str) -> str:
    return f"MODEL_ID={model_id} is tuned for a causal encoder, which needs torch: pip install '.[gpu]'."


def causal_problem(model_id: str) -> str:
    tuned = f"MODEL_ID={model_id} is tuned for a causal encoder ({CAUSAL_KEY})"
    return f"ENCODER_PATH: {tuned}, which no file holds: unset it."
