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
    path = plan.value("encoder_path")
    if options.tuned_for_causal(directory):
        if path:
            raise ModelUnavailable(options.causal_problem(plan.model_id))
        try:
            from asr_server.features.encoders import causal_encoder
        except ImportError as error:
            raise ModelUnavailable(options.no_torch(plan.model_id)) from error
        return causal_encoder.load(*load())
    if not path:
        return None
    parts, _ = load()
    from asr_server.engine.qwen_asr.windows import LoadedEncoder, WindowedAudio
    from asr_server.features.encoders.exported_encoder import OnnxEncoder, Target, compared
    from asr_server.features.encoders.trt_encoder import TrtEncoder

    kind = TrtEncoder if options.is_tensorrt(Path(path)) else OnnxEncoder
    encoder = kind(Path(path), parts.tower, Target(parts.device, parts.dtype, plan.cpu_threads))
    reason = compared(encoder, parts)
    logger.info("option", name="encoder_path", value=path, reason=reason)
    figures = (Option("encoder_path", True, path, reason),)
    return LoadedEncoder(encoder, partial(WindowedAudio, encoder), figures, uses_tower=False)


FEATURE = Feature("encoders", encoder_options=options.resolve, load_encoder=_load)
