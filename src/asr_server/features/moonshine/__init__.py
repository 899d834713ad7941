"""Moonshine tiny (English): a small recogniser whose weights come with a Python package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.feature import Feature, ModelFeature, Plan
from asr_server.engine.protocol import Aligner, Engine, EngineTraits
from asr_server.features.moonshine import package

if TYPE_CHECKING:
    from asr_server.engine.feature import OnProgress
    from asr_server.engine.qwen_asr.model_cache import CachedModel

# On clips of 45 s Moonshine ends early or repeats itself. It was trained on single utterances: 12 minutes of joined
# recordings with 1,335 words had 117 word errors with the pauses and margins of the other engines, 98 with these, and
# 96 with one row per recording.
_TRAITS = EngineTraits(
    languages=(package.LANGUAGE,),
    max_audio_s=20.0,
    max_pause_s=0.8,
    margin_ms=500,
    uses_context=False,
    detects_among=False,
)


def _build(plan: Plan, on_progress: OnProgress, on_load_progress: OnProgress) -> Engine:
    from asr_server.features.moonshine.engine import MoonshineEngine

    return MoonshineEngine(plan, on_progress)


def _build_aligner(engine: Engine) -> Aligner:
    from asr_server.features.moonshine.aligner import MoonshineAligner
    from asr_server.features.moonshine.engine import MoonshineEngine

    assert isinstance(engine, MoonshineEngine), "it uses the weights of the engine"
    return MoonshineAligner(engine)


def _stored() -> CachedModel:
    from asr_server.engine.qwen_asr.model_cache import CachedModel

    try:
        files = package.locate()
    except ModelUnavailable as error:
        problem = error.message.removeprefix(f"MODEL_ID={package.MODEL_ID}: ")
        here = package.installed()
        return CachedModel(package.MODEL_ID, Path(), 0, problem, has_digests=True, is_here=here)
    return CachedModel(package.MODEL_ID, files.encoder.parent, files.size_bytes, "", has_digests=True)


FEATURE = Feature(
    "moonshine",
    model=ModelFeature(
        engine="moonshine",
        model_id=package.MODEL_ID,
        reason=f"MODEL_ID={package.MODEL_ID}: a small model of English that runs on the CPU, without torch",
        aligner_reason="from the decoder's attention to the audio; FORCED_ALIGNER_ID is not set",
        traits=_TRAITS,
        build=_build,
        build_aligner=_build_aligner,
        package=package.DISTRIBUTION,
        stored=_stored,
    ),
)
