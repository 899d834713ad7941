"""Chooses the parts of the engine from settings and capabilities, each with a reason. Loads nothing.

Every option of the product is named here. It is active, inactive with a reason, or `resolve` refuses with one error
that names every conflict: no option may be shown as active and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from asr_server.core.setting_types import Dtype
from asr_server.core.settings import Settings
from asr_server.engine import encoder_options, machine_options
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.moonshine import package as moonshine
from asr_server.engine.protocol import DEFAULT_TRAITS, EngineTraits, Option
from asr_server.engine.qwen.checkpoint import DEMO, is_hub_id

# Engines. The name of the scripted one is its MODEL_ID too; it has neither a slash nor a directory, as a model has.
QWEN = "qwen"
MOONSHINE = "moonshine"
FAKE = "fake"
# The MODEL_ID that leaves the choice to the machine, and what is chosen.
AUTO_MODEL = "auto"
_GPU_MODEL, _CPU_MODEL = "Qwen/Qwen3-ASR-1.7B", "Qwen/Qwen3-ASR-0.6B"
# The engine of each MODEL_ID that names no Qwen3-ASR checkpoint.
ENGINES_BY_MODEL = {FAKE: FAKE, moonshine.MODEL_ID: MOONSHINE}


class PlanError(ValueError):
    """The settings ask for something this machine or this version cannot do; one line for each conflict."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engine is built from; chosen once at start. `dtype`: "auto" where only loading can tell.
    `aligner_id`: "" where there is none. `model_revision`, `aligner_revision`: of hub ids, "" for any. `quantize`: the
    8-bit format of linear layers, "" for none. `cpu_threads`: 0 leaves the number to the library."""

    engine: str
    model_id: str
    device: str
    dtype: str
    max_batch: int
    kv_budget_mb: int
    options: tuple[Option, ...]
    aligner_id: str = ""
    model_revision: str = ""
    aligner_revision: str = ""
    traits: EngineTraits = DEFAULT_TRAITS
    fake_script: Path | None = None
    quantize: str = ""
    cpu_threads: int = 0

    def value(self, name: str) -> str:
        """The value of an option, "" where it is inactive or unknown."""
        return next((option.value for option in self.options if option.name == name), "")

    @property
    def cuda_graphs(self) -> bool:
        """Whether decode steps are recorded."""
        return any(option.name == "use_cuda_graphs" and option.active for option in self.options)


# Options that this version does not have: the setting, and what to do instead.
ABSENT = {
    "dual_model": "choose one model with MODEL_ID",
    "use_speculative": "unset it",
    "use_vllm": "unset it; the engine batches by itself",
    "numa_node": "start the server under numactl",
    "use_granian": "unset it; uvicorn serves",
}

# A row more makes a step on a CPU longer. On a GPU a step reads all weights, however many rows share it.
_MAX_BATCH = {"cpu": 8, "cuda": 32}

# flash-attention's kernels take no mask per row, which slots at their own length need.
_ATTENTION_REASON = "torch's own kernels; 8 s encoder windows are rows of a batch, so no backend can skip a mask"

# Medians of ten steps, five times in turns: the 0.6B's shape in float32, four rows, two cores (2026-11-22).
_COMPILE_REASON = "a decode step on a CPU is 10 % shorter with it, and the first one 26 s longer"

_BATCHING_REASON = "most spans that share one decode step; memory may allow fewer, see slots"
_ONLY_DTYPE = Dtype.FLOAT32.value, "the only one of this engine"
_TORCH_OPTIONS = (
    Option("attention", True, "sdpa", _ATTENTION_REASON),
    Option("torch_compile", False, "", _COMPILE_REASON),
)

_REASONS = {
    FAKE: f"MODEL_ID={FAKE}: answers are scripted and no model runs; for tests only",
    MOONSHINE: f"MODEL_ID={moonshine.MODEL_ID}: a small model of English that runs on the CPU, without torch",
}

# On clips of 45 s Moonshine ends early or repeats itself. It was trained on single utterances: 12 minutes of joined
# recordings had 117 word errors of 1,335 with the pauses and margins of the other engines, 98 with these, and 96 where
# each recording was a row.
_TRAITS = {
    MOONSHINE: EngineTraits(
        languages=(moonshine.LANGUAGE,), max_audio_s=20.0, max_pause_s=0.8, margin_ms=500, uses_context=False
    )
}

_GATEWAY_REASONS = {
    True: "as set; the model runs in a process of its own, which ends when idle and is started again after a crash",
    False: "not set; one process, which unloads the model when idle",
}


def resolve(settings: Settings, capabilities: Capabilities) -> Plan:
    """The plan for these settings on this machine. Raises `PlanError`."""
    engine = ENGINES_BY_MODEL.get(settings.model_id, QWEN)
    conflicts: list[str] = []
    torch = engine == QWEN
    found = machine_options.device(settings.device, capabilities, conflicts) if torch else ("cpu", _REASONS[engine])
    device, device_reason = found
    dtype, dtype_reason = machine_options.dtype(settings, device, capabilities) if torch else _ONLY_DTYPE
    model = _model(settings.model_id, device)
    quantize = machine_options.quantize(settings, device, capabilities, conflicts, torch=torch)
    threads = machine_options.threads(settings.cpu_threads, capabilities, torch=torch)
    graphs = machine_options.cuda_graphs(settings.use_cuda_graphs, device, quantize, capabilities, conflicts)
    encoders = encoder_options.resolve(settings, device, capabilities, conflicts, torch=torch)
    conflicts += _conflicts(settings, engine, model.value, capabilities)
    if conflicts:
        raise PlanError("\n".join(conflicts))
    aligner_id, aligner_reason = _aligner(settings, engine)
    max_batch = settings.max_batch or _MAX_BATCH[device.partition(":")[0]]
    parts = (
        model,
        Option("device", True, device, device_reason),
        Option("dtype", True, dtype, dtype_reason),
        quantize,
        threads,
        Option("batching", max_batch > 1, str(max_batch), _BATCHING_REASON),
        machine_options.exact_batching(device, dtype, quantize),
    )
    options = (
        *((Option("engine", True, engine, _REASONS[engine]),) if engine != QWEN else ()),
        *(parts if engine != FAKE else ()),
        *((*_TORCH_OPTIONS, graphs, *encoders) if torch else ()),
        Option("aligner", bool(aligner_id), aligner_id, aligner_reason),
        Option("gateway_mode", settings.gateway_mode, "", _GATEWAY_REASONS[settings.gateway_mode]),
        _translation(settings),
        *(Option(name, False, "", _absence(settings, name)) for name in ABSENT),
    )
    return Plan(
        engine=engine,
        model_id=model.value,
        device=device,
        dtype=dtype,
        max_batch=max_batch,
        kv_budget_mb=settings.kv_budget_mb,
        options=options,
        aligner_id=aligner_id,
        model_revision=settings.model_revision,
        aligner_revision=settings.forced_aligner_revision,
        traits=replace(_TRAITS.get(engine, DEFAULT_TRAITS), aligns=bool(aligner_id)),
        fake_script=settings.fake_engine_script,
        quantize=quantize.value,
        cpu_threads=int(threads.value or 0),
    )


def _conflicts(settings: Settings, engine: str, model_id: str, capabilities: Capabilities) -> Iterator[str]:
    for name, advice in ABSENT.items():
        if name == "numa_node" and settings.numa_node == 0 and capabilities.numa_nodes <= 1:
            continue  # the only node: nothing to pin
        if getattr(settings, name) != Settings.model_fields[name].default:
            yield f"{name.upper()} is not available in this version: {advice}."
    if settings.fake_engine_script is not None and engine != FAKE:
        yield "FAKE_ENGINE_SCRIPT is for tests with MODEL_ID=fake, and MODEL_ID is another: unset it."
    if settings.forced_aligner_id == moonshine.MODEL_ID != settings.model_id:
        yield f"FORCED_ALIGNER_ID={moonshine.MODEL_ID} works with MODEL_ID={moonshine.MODEL_ID} only."
    if engine == QWEN and not capabilities.qwen:
        yield (
            f"MODEL_ID={model_id}: the packages of Qwen3-ASR are not installed: run `make serve`, or "
            f"pip install -r requirements.txt, or set MODEL_ID={moonshine.MODEL_ID}."
        )
    for name, model in (("model", model_id), ("forced_aligner", settings.forced_aligner_id)):
        if getattr(settings, f"{name}_revision") and (not is_hub_id(model) or Path(model).is_dir()):
            yield f"{name.upper()}_REVISION is for models of the hub, and {name.upper()}_ID={model} is none: unset it."
    if engine != QWEN and settings.cpu_threads:
        reason = machine_options.THREADS_REASON
        yield f"CPU_THREADS={settings.cpu_threads} is not available with MODEL_ID={model_id}: {reason}."
    if engine == MOONSHINE and settings.device not in ("auto", "cpu"):
        yield f"DEVICE={settings.device}: {moonshine.MODEL_ID} runs on the CPU only; unset it."
    if engine == MOONSHINE and settings.dtype not in (Dtype.AUTO, Dtype.FLOAT32):
        yield f"DTYPE={settings.dtype.value}: {moonshine.MODEL_ID} runs in float32 only; unset it."


def _absence(settings: Settings, name: str) -> str:
    if name == "numa_node" and settings.numa_node == 0:
        return "this machine has one node: there is nothing to pin"
    return "not available in this version"


def _translation(settings: Settings) -> Option:
    if settings.openai_base_url and settings.translate_model:
        return Option("translation", True, settings.translate_model, "by the endpoint at OPENAI_BASE_URL")
    return Option("translation", False, "", "OPENAI_BASE_URL and TRANSLATE_MODEL are not both set")


def _aligner(settings: Settings, engine: str) -> tuple[str, str]:
    """The released model's word times would be wrong for nobody, but what is bundled should need no download."""
    when = "loaded for the first word times, unloaded when idle"
    if engine == FAKE:
        return FAKE, f"MODEL_ID={FAKE} brings its own; {when}"
    if engine == MOONSHINE and "forced_aligner_id" not in settings.model_fields_set:
        return moonshine.MODEL_ID, "from the decoder's attention to the audio; FORCED_ALIGNER_ID is not set"
    if settings.model_id == DEMO and "forced_aligner_id" not in settings.model_fields_set:
        return DEMO, f"MODEL_ID={DEMO} brings its own, FORCED_ALIGNER_ID is not set; {when}"
    return settings.forced_aligner_id, when


def chosen_model(settings: Settings, capabilities: Capabilities) -> str:
    """MODEL_ID, or what `auto` stands for on this machine."""
    return _model(settings.model_id, machine_options.device(settings.device, capabilities, [])[0]).value


def _model(wanted: str, device: str) -> Option:
    if wanted != AUTO_MODEL:
        return Option("model", True, wanted, "as set")
    if device.startswith("cuda"):
        return Option("model", True, _GPU_MODEL, "MODEL_ID=auto: the larger model, for a GPU")
    return Option("model", True, _CPU_MODEL, "MODEL_ID=auto: the smaller model, for a CPU")
