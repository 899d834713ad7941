"""Chooses the parts of the engine from settings and capabilities, each with a reason. Loads nothing.

Every option of the product is named here. It is active, inactive with a reason, or `resolve` refuses with one error
that names every conflict: no option may be shown as active and have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asr_server.core.settings import Dtype, Settings
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.qwen.checkpoint import DEMO

# The name of the scripted engine as MODEL_ID. It has neither a slash nor a directory, so it names no real model.
FAKE = "fake"


class PlanError(ValueError):
    """The settings ask for something this machine or this version cannot do; one line for each conflict."""


@dataclass(frozen=True, slots=True)
class Option:
    """One line of the plan as `/health` shows it."""

    name: str
    active: bool
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engine is built from; chosen once at start."""

    engine: str
    model_id: str
    device: str
    dtype: str
    max_batch: int
    kv_budget_mb: int
    options: tuple[Option, ...]
    aligner_id: str = ""
    fake_script: Path | None = None


# Options that this version does not have: the setting, and what to do instead.
ABSENT = {
    "dual_model": "choose one model with MODEL_ID",
    "use_speculative": "unset it",
    "quantize": "use DTYPE=bfloat16 to halve the memory",
    "onnx_encoder_path": "unset it; the encoder runs in torch",
    "trt_encoder_path": "unset it; the encoder runs in torch",
    "use_vllm": "unset it; the engine batches by itself",
    "use_cuda_graphs": "unset it",
    "use_causal_encoder": "unset it",
    "numa_node": "start the server under numactl",
    "use_granian": "unset it; uvicorn serves",
}

# flash-attention's kernels take no mask per row, which slots at their own length need.
_ATTENTION_REASON = "torch's own kernels; 8 s encoder windows are rows of a batch, so no backend can skip a mask"

_FAKE_REASON = f"MODEL_ID={FAKE}: answers are scripted and no model runs; for tests only"

_GATEWAY_REASONS = {
    True: "as set; the model runs in a process of its own, which ends when idle and is started again after a crash",
    False: "not set; one process, which unloads the model when idle",
}


def resolve(settings: Settings, capabilities: Capabilities) -> Plan:
    """The plan for these settings on this machine. Raises `PlanError`."""
    conflicts = [
        f"{name.upper()} is not available in this version: {advice}."
        for name, advice in ABSENT.items()
        if getattr(settings, name) != Settings.model_fields[name].default
    ]
    fake = settings.model_id == FAKE
    if settings.fake_engine_script is not None and not fake:
        conflicts.append("FAKE_ENGINE_SCRIPT is for tests with MODEL_ID=fake, and MODEL_ID is another: unset it.")
    device, device_reason = ("cpu", _FAKE_REASON) if fake else _device(settings.device, capabilities, conflicts)
    dtype, dtype_reason = _dtype(settings.dtype, device)
    if conflicts:
        raise PlanError("\n".join(conflicts))
    aligner_id, aligner_reason = _aligner(settings)
    batching_reason = "most spans that share one decode step; memory may allow fewer, see slots"
    parts = (
        Option("device", True, device, device_reason),
        Option("dtype", True, dtype, dtype_reason),
        Option("batching", settings.max_batch > 1, str(settings.max_batch), batching_reason),
        Option("attention", True, "sdpa", _ATTENTION_REASON),
    )
    options = (
        *((Option("engine", True, FAKE, _FAKE_REASON),) if fake else parts),
        Option("aligner", True, aligner_id, aligner_reason),
        Option("gateway_mode", settings.gateway_mode, "", _GATEWAY_REASONS[settings.gateway_mode]),
        _translation(settings),
        *(Option(name, False, "", "not available in this version") for name in ABSENT),
    )
    return Plan(
        engine=FAKE if fake else "qwen",
        model_id=settings.model_id,
        device=device,
        dtype=dtype,
        max_batch=settings.max_batch,
        kv_budget_mb=settings.kv_budget_mb,
        options=options,
        aligner_id=aligner_id,
        fake_script=settings.fake_engine_script,
    )


def _translation(settings: Settings) -> Option:
    if settings.openai_base_url and settings.translate_model:
        return Option("translation", True, settings.translate_model, "by the endpoint at OPENAI_BASE_URL")
    return Option("translation", False, "", "OPENAI_BASE_URL and TRANSLATE_MODEL are not both set")


def _aligner(settings: Settings) -> tuple[str, str]:
    """The released model's word times would be wrong for nobody, but the demonstration should need no download."""
    when = "loaded for the first word times, unloaded when idle"
    if settings.model_id == FAKE:
        return FAKE, f"MODEL_ID={FAKE} brings its own; {when}"
    if settings.model_id == DEMO and "forced_aligner_id" not in settings.model_fields_set:
        return DEMO, f"MODEL_ID={DEMO} brings its own, FORCED_ALIGNER_ID is not set; {when}"
    return settings.forced_aligner_id, when


def _device(wanted: str, capabilities: Capabilities, conflicts: list[str]) -> tuple[str, str]:
    if wanted == "auto":
        if capabilities.gpu and capabilities.torch_cuda:
            return "cuda", "an NVIDIA driver and a CUDA build of torch are installed"
        return "cpu", "no NVIDIA driver found" if not capabilities.gpu else "the installed torch is a CPU build"
    if wanted.startswith("cuda"):
        if not capabilities.gpu:
            conflicts.append(f"DEVICE={wanted}: no NVIDIA driver found on this machine; set DEVICE=cpu.")
        if not capabilities.torch_cuda:
            conflicts.append(f"DEVICE={wanted}: the installed torch is a CPU build; install requirements-gpu.txt.")
    return wanted, "as set"


def _dtype(wanted: Dtype, device: str) -> tuple[str, str]:
    if wanted is not Dtype.AUTO:
        return wanted.value, "as set"
    if device.startswith("cuda"):
        return Dtype.BFLOAT16.value, "the format of the released weights"
    return Dtype.FLOAT32.value, "exact, and the fastest on CPUs without bfloat16 units"
