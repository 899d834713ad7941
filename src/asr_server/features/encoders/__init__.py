"""Other encoders for Qwen3-ASR: exported to ONNX or TensorRT, and one that hears only the past."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.feature import Feature, LoadParts, Plan
from asr_server.engine.protocol import Option
from asr_server.features.encoders import options

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.windows import LoadedEncoder


def _load(plan: Plan, directory: Path, load: LoadParts) -> LoadedEncoder | None:
    name = next((name for name in ("onnx_encoder_path", "trt_encoder_path") if plan.value(name)), "")
    if options.tuned_for_causal(directory):
        if name:
            raise ModelUnavailable(options.causal_problem(plan.model_id, name.upper()))
        try:
            from asr_server.features.encoders import causal_encoder
        except ImportError as error:
            raise ModelUnavailable(options.no_torch(plan.model_id)) from error
        return causal_encoder.load(*load())
    if not name:
        return None
    parts, _ = load()
    from asr_server.engine.qwen_asr.windows import LoadedEncoder, WindowedAudio
    from asr_server.features.encoders.exported_encoder import OnnxEncoder, Target, compared
    from asr_server.features.encoders.trt_encoder import TrtEncoder

    kind = OnnxEncoder if name == "onnx_encoder_path" else TrtEncoder
    encoder = kind(Path(plan.value(name)), parts.tower, Target(parts.device, parts.dtype, plan.cpu_threads))
    reason = compared(encoder, parts)
    logger.info("option", name=name, value=plan.value(name), reason=reason)
    figures = (Option(name, True, plan.value(name), reason),)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder), figures, uses_tower=False)


FEATURE = Feature("encoders", encoder_options=options.resolve, load_encoder=_load)
