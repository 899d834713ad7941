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
    names = "use_causal_encoder", "onnx_encoder_path", "trt_encoder_path"
    name = next((name for name in names if plan.value(name)), "")
    if problem := options.causal_problem(plan.model_id, directory, wanted=name == names[0]):
        raise ModelUnavailable(problem)
    if not name:
        return None
    parts, make_linear = load()
    if name == names[0]:
        from asr_server.features.encoders import causal_encoder

        return causal_encoder.load(parts, make_linear)
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
