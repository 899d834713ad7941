"""Other encoders for Qwen3-ASR: exported to ONNX or TensorRT, and one that hears the past alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.feature import EncoderFeature, Feature, Plan
from asr_server.features.encoders import options

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.loading import Parts
    from asr_server.engine.qwen_asr.windows import LoadedEncoder
    from asr_server.engine.torch.linear import MakeLinear


def _check(plan: Plan, directory: Path) -> None:
    wanted = bool(plan.value("use_causal_encoder"))
    if problem := options.causal_problem(plan.model_id, directory, wanted=wanted):
        raise ModelUnavailable(problem)


def _load(plan: Plan, directory: Path, load: Callable[[], tuple[Parts, MakeLinear]]) -> LoadedEncoder | None:
    if not any(plan.value(name) for name in ("use_causal_encoder", "onnx_encoder_path", "trt_encoder_path")):
        return None
    from asr_server.features.encoders import causal_encoder, exported_encoder

    parts, make_linear = load()
    if plan.value("use_causal_encoder"):
        return causal_encoder.load(parts, make_linear)
    target = exported_encoder.Target(parts.device, parts.dtype, plan.cpu_threads)
    if file := plan.value("onnx_encoder_path"):
        from asr_server.features.encoders.onnx_encoder import OnnxEncoder

        onnx = OnnxEncoder(Path(file), parts.tower, target)
        return exported_encoder.measured("onnx_encoder_path", onnx, directory, parts)
    from asr_server.features.encoders.trt_encoder import TrtEncoder

    tensorrt = TrtEncoder(Path(plan.value("trt_encoder_path")), parts.tower, target)
    return exported_encoder.measured("trt_encoder_path", tensorrt, directory, parts)


FEATURE = Feature("encoders", encoders=EncoderFeature(resolve=options.resolve, load=_load, check=_check))
