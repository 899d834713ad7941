"""Chooses the parts of the engine from settings and capabilities, each with a reason. Loads nothing.

Every option of the product is named here. It is active, inactive with a reason, or `resolve` refuses with one error
that names every conflict: no option may be shown as active and have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from asr_server.core.environment import fake_engine_script
from asr_server.core.setting_types import Dtype, Fusion, ModelLibrary, Quantization
from asr_server.core.settings import Settings
from asr_server.engine import machine_options
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import OPENVINO, Asked, Feature, ModelFeature, Plan
from asr_server.engine.protocol import AS_SET, DEFAULT_TRAITS, Option
from asr_server.engine.qwen_asr.checkpoint import DEMO, at_revision

# Engines. The scripted engine's name is also its MODEL_ID. Unlike a model's, it has no slash and names no directory.
QWEN = "qwen"
FAKE = "fake"
# A second scripted model, for tests with several models.
FAST_FAKE = "fake-fast"
# The models that MODEL_ID=auto chooses from, and the least memory of a GPU for the larger one, whose weights take 4 GB.
_GPU_MODEL_MB = 6_000
_GPU_MODEL, _CPU_MODEL = "Qwen/Qwen3-ASR-1.7B", "Qwen/Qwen3-ASR-0.6B"


class PlanError(ValueError):
    """The settings ask for something this machine or this version cannot do; one line for each conflict."""


# On a CPU each further row makes a step longer. On a GPU a step reads all weights, however many rows share it.
_MAX_BATCH = {"cpu": 8, "cuda": 64}

ALIGNER_WHEN = "loaded for the first word times, unloaded when idle"
_BATCHING_REASON = "most spans that share one decode step; memory may allow fewer, see slots"
ONLY_DTYPE = Dtype.FLOAT32.value, "the only one of this engine"
_WINDOWS = "8 s encoder windows are rows of a batch"
_ATTENTION = {
    True: Option("attention", True, "paged", f"keys and values in pages of 32 tokens; {_WINDOWS}"),
    False: Option("attention", True, "sdpa", f"torch's own kernels, row by row; on a GPU the load decides. {_WINDOWS}"),
}

# The MODEL_ID that leaves the choice to the machine.
AUTO_MODEL = "auto"
# Each model has its own weights in memory, and its own name in the metrics.
MAX_MODELS = 8

_DUAL_REASON = "writes the words of live partials; MODEL_ID writes finals and recordings, and commits live words"
_DRAFTS_REASON = "its transcripts are drafts, which MODEL_ID verifies"
_FAKE_REASON = f"MODEL_ID={FAKE}: answers are scripted and no model runs; for tests only"


def resolve(settings: Settings, capabilities: Capabilities, features: Sequence[Feature] = ()) -> Plan:
    """Return the plan for these settings on this machine, with these features. Raises `PlanError`."""
    asked = Asked(settings, capabilities, tuple(features))
    conflicts = [*_server_conflicts(asked), *(line for feature in features for line in feature.conflicts(asked))]
    place = next(filter(None, (feature.placement(asked) for feature in features)), None)
    if place is not None:
        asked = replace(asked, capabilities=replace(capabilities, cpu=place.share))
    only_here = (DEMO, *(model.model_id for model in _models(asked)), FAKE)
    try:
        remote = next(filter(None, (feature.elsewhere(asked, only_here) for feature in features)), None)
        plan = remote or _of_models(asked)
    except PlanError as error:
        raise PlanError("\n".join((str(error), *conflicts))) from None
    if conflicts:
        raise PlanError("\n".join(conflicts))
    shared = {name: model for feature in features for name, model in feature.shared_models(asked).items()}
    shares = 1 if remote else 1 + len(plan.others) + len(shared)  # all models share the memory
    bind = place.bind if place is not None else None
    return replace(
        plan,
        options=(
            *plan.options,
            *_process_options(settings, plan),
            *(option for feature in features for option in feature.options(asked)),
        ),
        shares=shares,
        bind=bind,
        others=tuple(replace(other, shares=shares, bind=bind) for other in plan.others),
        speech_models={name: replace(model, shares=shares) for name, model in shared.items()},
    )


def _of_models(asked: Asked) -> Plan:
    """Return the plan of the default model together with the plans of further models."""
    settings, conflicts = asked.settings, list[str]()
    default, embedded = settings.model_names[0], _embedded(asked)
    if embedded is not None:
        default = embedded.model_id
    plan = _of_one_model(replace(asked, settings=settings.model_copy(update={"model_id": default})), conflicts)
    if embedded is not None:
        model = Option("model", True, plan.model_id, f"MODEL_ID=auto: English only; {_no_qwen(asked.capabilities)}")
        plan = replace(plan, options=tuple(model if old.name == "model" else old for old in plan.options))
    others = _others(asked, plan.model_id, conflicts)
    if conflicts:
        raise PlanError("\n".join(conflicts))
    uses_fast = settings.dual_model or settings.use_speculative
    return replace(
        plan,
        options=(*plan.options, *models_options(settings, plan.model_id)),
        others=tuple(others),
        fast_model_id=at_revision(settings.fast_model_id)[0] if uses_fast else "",
    )


def _of_one_model(asked: Asked, conflicts: list[str]) -> Plan:
    settings, capabilities = asked.settings, asked.capabilities
    engine, added = _engine(asked, settings.model_id)
    torch = engine == QWEN
    reason = added.reason if added is not None else _FAKE_REASON
    chosen = machine_options.device(settings.device, capabilities, conflicts) if torch else ("cpu", reason)
    device = chosen[0]
    model_id, revision = at_revision(settings.model_id)
    model = model_option(model_id, device, capabilities)
    dtype, runtime, quantize = _computing(asked, device, conflicts, torch=torch)
    threads = machine_options.threads(settings.cpu_threads, capabilities, torch=torch)
    of_torch = _torch_options(asked, device, conflicts, runtime=runtime.value)
    conflicts += _conflicts(asked, engine, model.value)
    aligner, aligner_reason = _aligner(settings, engine, added)
    aligner_id, aligner_revision = at_revision(aligner)
    max_batch = settings.max_batch or _MAX_BATCH[device.partition(":")[0]]
    parts = (
        model,
        Option("device", True, *chosen),
        dtype,
        *((runtime, quantize, threads) if torch else (quantize, threads)),
        Option("batching", max_batch > 1, str(max_batch), _BATCHING_REASON),
        machine_options.exact_batching(device, dtype.value, quantize),
    )
    options = (
        *((Option("engine", True, engine, reason),) if engine != QWEN else ()),
        *(parts if engine != FAKE else ()),
        *of_torch,
        Option("aligner", bool(aligner_id), aligner_id, aligner_reason),
    )
    return Plan(
        engine=engine,
        model_id=model.value,
        device=device,
        dtype=dtype.value,
        max_batch=max_batch,
        kv_budget_mb=settings.kv_budget_mb,
        options=options,
        aligner_id=aligner_id,
        model_revision=revision,
        aligner_revision=aligner_revision,
        traits=replace(DEFAULT_TRAITS if added is None else added.traits, aligns=bool(aligner_id)),
        fake_script=fake_engine_script(),
        quantize=quantize.value,
        cpu_threads=int(threads.value or 0),
        runtime=runtime.value,
        state_dir=settings.state_dir,
        build=added.build if added is not None else None,
        features=asked.features,
    )


def _computing(asked: Asked, device: str, conflicts: list[str], *, torch: bool) -> tuple[Option, Option, Option]:
    """Return the options of the number format, the library, and the 8- or 4-bit format of the layers. The last two have
    no value for an engine that runs in neither torch nor OpenVINO."""
    settings, capabilities = asked.settings, asked.capabilities
    dtype, reason = machine_options.dtype(settings, device, capabilities) if torch else ONLY_DTYPE
    runtime = Option("runtime", False, "", "this engine has one of its own")
    if torch:
        runtime = machine_options.runtime(settings.runtime, device, dtype, capabilities, conflicts)
    quantize = machine_options.quantize(settings, device, capabilities, conflicts, runtime=runtime.value)
    return Option("dtype", True, dtype, reason), runtime, quantize


def _engine(asked: Asked, model_id: str) -> tuple[str, ModelFeature | None]:
    """Return the engine that runs a value of MODEL_ID, and the feature's model if a feature provides it."""
    if model_id in (FAKE, FAST_FAKE):
        return FAKE, None
    added = next((model for model in _models(asked) if model.model_id == model_id), None)
    return (QWEN, None) if added is None else (added.engine, added)


def _embedded(asked: Asked) -> ModelFeature | None:
    """Return the installed model that `MODEL_ID=auto` means if the packages of Qwen3-ASR are not installed."""
    if asked.settings.model_names[0] != AUTO_MODEL or asked.capabilities.qwen:
        return None
    return next((model for model in _models(asked) if model.package in asked.capabilities.packages), None)


def _no_qwen(capabilities: Capabilities) -> str:
    extra = "gpu" if capabilities.gpu else "cpu"
    return f"the packages of Qwen3-ASR are not installed: pip install '.[{extra}]'"


def _models(asked: Asked) -> Iterator[ModelFeature]:
    return (feature.model for feature in asked.features if feature.model is not None)


def _torch_options(asked: Asked, device: str, conflicts: list[str], *, runtime: str) -> list[Option]:
    """Return the options of a model that computes in torch or OpenVINO; none for other models."""
    settings, capabilities = asked.settings, asked.capabilities
    graphs = machine_options.cuda_graphs(settings, device, capabilities, conflicts)
    fusion = machine_options.fusion(settings, device, capabilities, conflicts, runtime=runtime)
    options = [_ATTENTION[runtime == OPENVINO], graphs, fusion]
    for feature in asked.features:
        added, refused = feature.encoder_options(asked, device if runtime else "")
        options += added
        conflicts += refused
    return options if runtime else []


def _others(asked: Asked, model_id: str, conflicts: list[str]) -> list[Plan]:
    """Return the plans of the other models, and add their conflicts to `conflicts`."""
    settings = asked.settings
    conflicts += _model_conflicts(settings, model_id)
    plans = []
    for name in _beside(settings, model_id):
        engine, _ = _engine(asked, name)
        own = _of_another(settings, name, qwen=engine == QWEN)
        refused: list[str] = []
        plans.append(_of_one_model(replace(asked, settings=own), refused))
        conflicts += [f"{name}: {line}" for line in refused]
    return plans


def _beside(settings: Settings, model_id: str) -> list[str]:
    """Return the models that are resident in addition to `model_id`, the default."""
    fast = [settings.fast_model_id] if settings.dual_model or settings.use_speculative else []
    return [name for name in dict.fromkeys((*settings.model_names[1:], *fast)) if name and name != model_id]


def _of_another(settings: Settings, model_id: str, *, qwen: bool) -> Settings:
    """Return the settings for a model in addition to MODEL_ID, without the settings that are only for MODEL_ID.

    The settings of the processor and the GPU apply to Qwen3-ASR models only, so that the English model also runs on a
    machine with a GPU.
    """
    changes: dict[str, Any] = {"model_id": model_id, "encoder_path": ""}  # the file belongs to one checkpoint
    if not qwen:
        changes |= {"device": "auto", "dtype": Dtype.AUTO, "quantize": Quantization.AUTO, "cpu_threads": 0}
        changes |= {"runtime": ModelLibrary.AUTO, "use_cuda_graphs": "auto", "fuse": Fusion.AUTO}
    return settings.model_copy(update=changes)


def models_options(settings: Settings, model_id: str) -> tuple[Option, ...]:
    """Return the options of several models, active or not."""
    names, fast = [model_id, *_beside(settings, model_id)], settings.fast_model_id
    models = Option("models", False, "", "MODEL_ID names no other model")
    if len(names) > 1:
        models = Option("models", True, ", ".join(names), "each is loaded for its first request and idles by itself")
    switches = (
        ("dual_model", settings.dual_model, _DUAL_REASON),
        ("use_speculative", settings.use_speculative, _DRAFTS_REASON),
    )
    return models, *(Option(name, on, fast * on, reason if on else "not set") for name, on, reason in switches)


def _model_conflicts(settings: Settings, model_id: str) -> Iterator[str]:
    """Yield a line for each contradiction in the settings."""
    for name in ("dual_model", "use_speculative"):
        if getattr(settings, name) and not settings.fast_model_id:
            yield f"{name.upper()} needs FAST_MODEL_ID, a smaller model than MODEL_ID={model_id}."
    if (settings.dual_model or settings.use_speculative) and settings.fast_model_id == model_id:
        yield f"FAST_MODEL_ID is MODEL_ID={model_id}: a second copy gains nothing; name a smaller model."
    if AUTO_MODEL in _beside(settings, model_id):
        yield f"`{AUTO_MODEL}` is only for the first model of MODEL_ID, and not for FAST_MODEL_ID: name a model."
    if len(_beside(settings, model_id)) >= MAX_MODELS:
        yield f"MODEL_ID: at most {MAX_MODELS} models are resident."


def _server_conflicts(asked: Asked) -> Iterator[str]:
    settings = asked.settings
    chosen = settings.engine_process
    if settings.gateway_mode and chosen not in (True, "auto"):
        yield f"GATEWAY_MODE=true needs an engine process of its own, and ENGINE_PROCESS={chosen}: unset one of them."
    if settings.jobs_database_url.get_secret_value() and "asyncpg" not in asked.capabilities.packages:
        yield "JOBS_DATABASE_URL: asyncpg is not installed: pip install '.[postgres]', or unset it."
    named = (*settings.model_names, settings.fast_model_id, settings.speech)
    if {FAKE, FAST_FAKE}.intersection((*named, settings.speech_clone_model)) and find_spec("asr_server_fake") is None:
        yield "MODEL_ID=fake and SPEECH=fake are for tests: the package asr_server_fake is in the sources only."


def _process_options(settings: Settings, plan: Plan) -> Iterator[Option]:
    chosen, ends_idle = settings.engine_process, settings.gateway_mode
    on_gpu = plan.remote is None and plan.device.startswith("cuda")
    reason = "as set; the engine process ends when idle" if ends_idle else "not set; a model is unloaded when idle"
    yield Option("gateway_mode", ends_idle, "", reason)
    reason = AS_SET
    if ends_idle:
        reason = "GATEWAY_MODE: it starts with the first work and ends when idle"
    elif chosen == "auto":
        reason = "on a GPU, so that it never waits for the event loop" if on_gpu else "no GPU: one process is enough"
        reason = f"auto: {reason}"
    active = ends_idle or (on_gpu if chosen == "auto" else bool(chosen))
    path = chosen.removeprefix("unix:") if isinstance(chosen, str) and chosen != "auto" else ""
    yield Option("engine_process", active, path, reason)


def aligner_conflicts(asked: Asked) -> Iterator[str]:
    """Yield a sentence if FORCED_ALIGNER_ID names the aligner of a feature's model and MODEL_ID is not that model."""
    wanted = asked.settings.forced_aligner_id
    if any(wanted == model.model_id != asked.settings.model_id for model in _models(asked)):
        yield f"FORCED_ALIGNER_ID={wanted} works with MODEL_ID={wanted} only."


def _conflicts(asked: Asked, engine: str, model_id: str) -> Iterator[str]:
    settings = asked.settings
    yield from aligner_conflicts(asked)
    if engine == QWEN and not asked.capabilities.qwen:
        instead = "".join(f", or '.[demo]' and set MODEL_ID={model.model_id}" for model in _models(asked))
        yield f"MODEL_ID={model_id}: {_no_qwen(asked.capabilities)}{instead}."
    if engine != QWEN and settings.fuse in (Fusion.KERNELS, Fusion.COMPILE):
        yield f"FUSE={settings.fuse.value}: MODEL_ID={model_id} does not run in torch; unset it."
    if engine != QWEN and settings.cpu_threads:
        reason = machine_options.THREADS_REASON
        yield f"CPU_THREADS={settings.cpu_threads} is not available with MODEL_ID={model_id}: {reason}."
    if engine not in (QWEN, FAKE) and settings.device not in ("auto", "cpu"):
        yield f"DEVICE={settings.device}: {model_id} runs on the CPU only; unset it."
    if engine not in (QWEN, FAKE) and settings.dtype not in (Dtype.AUTO, Dtype.FLOAT32):
        yield f"DTYPE={settings.dtype.value}: {model_id} runs in float32 only; unset it."


def _aligner(settings: Settings, engine: str, added: ModelFeature | None) -> tuple[str, str]:
    """Return the aligner's id, "" for none, and the reason.

    By default the bundled models use the bundled aligner. The released one would work too, but needs a download.
    """
    if engine == FAKE:
        return FAKE, f"MODEL_ID={FAKE} brings its own; {ALIGNER_WHEN}"
    if added is not None and "forced_aligner_id" not in settings.model_fields_set:
        return added.model_id, added.aligner_reason
    if engine == QWEN and settings.model_id == DEMO and "forced_aligner_id" not in settings.model_fields_set:
        return DEMO, f"MODEL_ID={DEMO} brings its own, FORCED_ALIGNER_ID is not set; {ALIGNER_WHEN}"
    return settings.forced_aligner_id, ALIGNER_WHEN


def model_option(wanted: str, device: str, capabilities: Capabilities) -> Option:
    """Return the model that a value of MODEL_ID means on a device."""
    if wanted != AUTO_MODEL:
        return Option("model", True, wanted, "as set")
    memory_mb = min(capabilities.gpus.memory_mb, default=_GPU_MODEL_MB)
    if device.startswith("cuda") and memory_mb < _GPU_MODEL_MB:
        return Option("model", True, _CPU_MODEL, f"MODEL_ID=auto: the smaller model, for a GPU of {memory_mb} MB")
    if device.startswith("cuda"):
        return Option("model", True, _GPU_MODEL, "MODEL_ID=auto: the larger model, for a GPU")
    return Option("model", True, _CPU_MODEL, "MODEL_ID=auto: the smaller model, for a CPU")
