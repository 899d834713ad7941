"""The options for models in addition to MODEL_ID: MODELS, DUAL_MODEL and USE_SPECULATIVE. Used by `plan.py`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asr_server.core.setting_types import Dtype, ModelLibrary, Quantization
from asr_server.core.settings import Settings
from asr_server.engine.protocol import Option

# The MODEL_ID that leaves the choice to the machine.
AUTO_MODEL = "auto"
# Each model has its own weights in memory, and its own name in the metrics.
MAX_MODELS = 8

_DUAL_REASON = "writes the words of live partials; MODEL_ID writes finals and recordings, and commits live words"
_DRAFTS_REASON = "its transcripts are drafts, which MODEL_ID verifies"


def with_default(settings: Settings) -> Settings:
    """Return the settings with MODEL_ID: the first of MODELS where only those are set."""
    if settings.model_id == AUTO_MODEL and settings.model_names:
        return settings.model_copy(update={"model_id": settings.model_names[0]})
    return settings


def beside(settings: Settings, model_id: str) -> list[str]:
    """Return the models that are resident in addition to `model_id`, the default."""
    fast = [settings.fast_model_id] if settings.dual_model or settings.use_speculative else []
    return [name for name in dict.fromkeys((*settings.model_names, *fast)) if name and name != model_id]


def of_another(settings: Settings, model_id: str, *, qwen: bool, fake: bool) -> Settings:
    """Return the settings for a model in addition to MODEL_ID, without those that mean MODEL_ID alone.

    What the processor and the GPU can do is asked of Qwen3-ASR models only, so the English one runs on a machine with a
    GPU too.
    """
    changes: dict[str, Any] = {"model_id": model_id, "models": "", "fast_model_id": ""}
    changes |= {"dual_model": False, "use_speculative": False, "speech": "off", "speech_clone_model": ""}
    # A file of an encoder, and a causal one, belong to one checkpoint.
    changes |= {"onnx_encoder_path": "", "trt_encoder_path": "", "use_causal_encoder": False}
    if not qwen:
        changes |= {"device": "auto", "dtype": Dtype.AUTO, "quantize": Quantization.AUTO, "cpu_threads": 0}
        changes |= {"runtime": ModelLibrary.AUTO}
        changes |= {"use_cuda_graphs": "auto", "use_torch_compile": False, "use_fused_kernels": "auto"}
    if not fake:
        changes["fake_engine_script"] = None
    return settings.model_copy(update=changes)


def options(settings: Settings, model_id: str) -> tuple[Option, ...]:
    """Return a line for MODELS, DUAL_MODEL and USE_SPECULATIVE each, active or not."""
    names, fast = [model_id, *beside(settings, model_id)], settings.fast_model_id
    models = Option("models", False, "", "MODELS names no other model")
    if len(names) > 1:
        models = Option("models", True, ", ".join(names), "each is loaded for its first request and idles by itself")
    switches = (
        ("dual_model", settings.dual_model, _DUAL_REASON),
        ("use_speculative", settings.use_speculative, _DRAFTS_REASON),
    )
    return models, *(Option(name, on, fast * on, reason if on else "not set") for name, on, reason in switches)


def conflicts(settings: Settings, model_id: str) -> Iterator[str]:
    """Yield a line for each contradiction in the settings."""
    for name in ("dual_model", "use_speculative"):
        if getattr(settings, name) and not settings.fast_model_id:
            yield f"{name.upper()} needs FAST_MODEL_ID, a smaller model than MODEL_ID={model_id}."
    if (settings.dual_model or settings.use_speculative) and settings.fast_model_id == model_id:
        yield f"FAST_MODEL_ID is MODEL_ID={model_id}: a second copy gains nothing; name a smaller model."
    if AUTO_MODEL in beside(settings, model_id):
        yield f"MODELS and FAST_MODEL_ID name models: `{AUTO_MODEL}` is for MODEL_ID alone."
    if len(beside(settings, model_id)) >= MAX_MODELS:
        yield f"MODELS: at most {MAX_MODELS} models are resident."
