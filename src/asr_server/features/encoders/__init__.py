"""Other encoders for Qwen3-ASR: exported to ONNX or TensorRT, and one that hears the past alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.feature import EncoderFeature, Feature, Plan
from asr_server.features.encoders import options

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.loading import Parts
    from asr_server.engine.qwen_asr.windowed_audio import LoadedEncoder
    from asr_server.engine.torch.linear import MakeLinear


def _check(plan: Plan, directory: Path) -> None:
    wanted = bool(plan.value("use_causal_encoder"))
    if problem := options.causal_problem(plan.model_id, directory, wanted=wanted):
        raise ModelUnavailable(problem)


def _load(plan: Plan, directory: Path, parts: Parts, make_linear: MakeLinear) -> LoadedEncoder | None:
    from asr_server.features.encoders import causal_encoder, exported_encoder

    if plan.value("use_causal_encoder"):
        return causal_encoder.load(parts, make_linear)
    return exported_encoder.load(plan, directory, parts)


FEATURE = Feature("encoders", encoders=EncoderFeature(resolve=options.resolve, load=_load, check=_check))
