"""Chooses the parts of the engine from settings and capabilities, each with a reason. Loads nothing.

Every option of the product is named here. It is active, inactive with a reason, or `resolve` refuses with one error
that names every conflict: no option may be shown as active and have no effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from asr_server.core.setting_types import Dtype
from asr_server.core.settings import Settings
from asr_server.engine import machine_options, model_options
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Feature
from asr_server.engine.protocol import DEFAULT_TRAITS, EngineTraits, Option
from asr_server.engine.qwen_asr.checkpoint import DEMO, is_hub_id
from asr_server.features.encoders import options as encoder_options
from asr_server.features.host.numa import Node
from asr_server.features.moonshine import package as moonshine
from asr_server.features.remote_engine import options as remote_options
from asr_server.features.remote_engine.options import Remote
from asr_server.features.speakers.diarization import model_source, package
from asr_server.features.speakers.diarization.package import EMBEDDED
from asr_server.features.speech_output import options as speech_options
from asr_server.features.speech_output.engines.qwen_tts.model import SpeechModel

# Engines. The name of the scripted one is its MODEL_ID too; it has neither a slash nor a directory, as a model has.
QWEN = "qwen"
MOONSHINE = "moonshine"
FAKE = "fake"
# Chosen by VLLM_BASE_URL or USE_VLLM, whatever MODEL_ID is.
REMOTE = "remote"
# A second scripted model, for tests of what several do.
FAST_FAKE = "fake-fast"
# The models that MODEL_ID=auto chooses from.
_GPU_MODEL, _CPU_MODEL = "Qwen/Qwen3-ASR-1.7B", "Qwen/Qwen3-ASR-0.6B"
# The engine of each MODEL_ID that names no Qwen3-ASR checkpoint.
ENGINES_BY_MODEL = {FAKE: FAKE, FAST_FAKE: FAKE, moonshine.MODEL_ID: MOONSHINE}
_SPEAKERS_OFF, _SPEAKERS_AUTO = "off", "auto"
_SPEAKERS_WHEN = "in a process of its own; loaded for the first request"


class PlanError(ValueError):
    """The settings ask for something this machine or this version cannot do; one line for each conflict."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts and numbers that the engine is built from, chosen once at start."""

    engine: str
    model_id: str
    device: str
    dtype: str  # "auto" where only loading can tell
    max_batch: int
    kv_budget_mb: int  # MiB for keys and values; 0: a share of what is free
    options: tuple[Option, ...]
    aligner_id: str = ""  # "" where there is none
    model_revision: str = ""  # commit of a hub id, "" for any
    aligner_revision: str = ""  # commit of a hub id, "" for any
    traits: EngineTraits = DEFAULT_TRAITS
    fake_script: Path | None = None
    quantize: str = ""  # 8-bit format of linear layers, "" for none
    cpu_threads: int = 0  # computing threads; 0 leaves the number to the library
    node: Node | None = None  # the memory node that the engine's threads are bound to
    remote: Remote | None = None  # where the engine `remote` finds its server
    shares: int = 1  # how many models share the memory
    others: tuple[Plan, ...] = ()  # the models in addition to this one, the default
    fast_model_id: str = ""  # the one of `others` that `dual_model` or `use_speculative` uses
    # models of Qwen3-TTS by the options that name them
    speech_models: Mapping[str, SpeechModel] = field(default_factory=dict)
    features: tuple[Feature, ...] = ()  # those that the plan was resolved with

    def value(self, name: str) -> str:
        """Return the value of an option, "" where it is inactive or unknown."""
        return next((option.value for option in self.options if option.name == name), "")

    def reason(self, name: str) -> str:
        """Return why an option is as it is."""
        return next(option.reason for option in self.options if option.name == name)

    @property
    def cuda_graphs(self) -> bool:
        """True if decode steps are recorded."""
        return self.is_active("use_cuda_graphs")

    @property
    def compiled(self) -> bool:
        """True if small operations of the layers are fused."""
        return self.is_active("use_torch_compile")

    def is_active(self, option: str) -> bool:
        """True if the option of that name is active."""
        return any(one.name == option and one.active for one in self.options)


# A row more makes a step on a CPU longer. On a GPU a step reads all weights, however many rows share it.
_MAX_BATCH = {"cpu": 8, "cuda": 32}

# flash-attention's kernels take no mask per row, which slots at their own length need.
_ATTENTION_REASON = "torch's own kernels; 8 s encoder windows are rows of a batch, so no backend can skip a mask"

_BATCHING_REASON = "most spans that share one decode step; memory may allow fewer, see slots"
_ONLY_DTYPE = Dtype.FLOAT32.value, "the only one of this engine"
_ATTENTION = Option("attention", True, "sdpa", _ATTENTION_REASON)

_REASONS = {
    FAKE: f"MODEL_ID={FAKE}: answers are scripted and no model runs; for tests only",
    MOONSHINE: f"MODEL_ID={moonshine.MODEL_ID}: a small model of English that runs on the CPU, without torch",
}

# On clips of 45 s Moonshine ends early or repeats itself. It was trained on single utterances: 12 minutes of joined
# recordings had 117 word errors of 1,335 with the pauses and margins of the other engines, 98 with these, and 96 where
# each recording was a row.
_TRAITS = {
    MOONSHINE: EngineTraits(
        languages=(moonshine.LANGUAGE,),
        max_audio_s=20.0,
        max_pause_s=0.8,
        margin_ms=500,
        uses_context=False,
        detects_among=False,
    ),
    # vLLM cuts longer audio itself, anywhere.
    REMOTE: EngineTraits(max_audio_s=30.0, scores=False, detects_among=False),
}

_GATEWAY_REASONS = {
    True: "as set; the model runs in a process of its own, which ends when idle and is started again after a crash",
    False: "not set; one process, which unloads the model when idle",
}
_SERVER_REASONS = {
    True: "as set; HTTP and WebSockets are read and written in Rust",
    False: "not set; uvicorn serves",
}


def resolve(settings: Settings, capabilities: Capabilities, features: Sequence[Feature] = ()) -> Plan:
    """Return the plan for these settings on this machine, with these features. Raises `PlanError`."""
    conflicts = [line for feature in features for line in feature.conflicts(settings)]
    without, speech, refused = speech_options.with_feature(settings, features)
    conflicts += refused
    try:
        plan = _without_features(without, capabilities)
    except PlanError as error:
        raise PlanError("\n".join((str(error), *conflicts))) from None
    if conflicts:
        raise PlanError("\n".join(conflicts))
    added = (option for feature in features for option in feature.options(settings))
    options: list[Option] = []
    for option in plan.options:
        options += speech_options.beside(option, speech) if option.name == speech_options.SPEECH else [option]
    return replace(plan, options=(*options, *added), features=tuple(features))


def _without_features(settings: Settings, capabilities: Capabilities) -> Plan:
    if remote_options.is_remote(settings):
        return _remote(settings, capabilities)
    settings, conflicts = model_options.with_default(settings), list[str]()
    plan = _of_one_model(settings, capabilities, conflicts)
    others = _others(settings, plan.model_id, capabilities, conflicts)
    if conflicts:
        raise PlanError("\n".join(conflicts))
    speaking = speech_options.models(settings, capabilities)
    shares, drafts = 1 + len(others) + len(speaking), settings.dual_model or settings.use_speculative
    return replace(
        plan,
        shares=shares,
        others=tuple(replace(other, shares=shares) for other in others),
        speech_models=speech_options.shared(speaking, shares),
        fast_model_id=settings.fast_model_id if drafts else "",
    )


def _of_one_model(settings: Settings, capabilities: Capabilities, conflicts: list[str]) -> Plan:
    engine = ENGINES_BY_MODEL.get(settings.model_id, QWEN)
    torch = engine == QWEN
    cpu = "cpu", _REASONS.get(engine, "")
    device, device_reason = machine_options.device(settings.device, capabilities, conflicts) if torch else cpu
    dtype, dtype_reason = machine_options.dtype(settings, device, capabilities) if torch else _ONLY_DTYPE
    model = _model(settings.model_id, device)
    quantize = machine_options.quantize(settings, device, capabilities, conflicts, torch=torch)
    numa_node, node = machine_options.numa_node(settings.numa_node, capabilities, conflicts)
    threads = machine_options.threads(settings.cpu_threads, capabilities, node, torch=torch)
    graphs = machine_options.cuda_graphs(settings.use_cuda_graphs, device, quantize, capabilities, conflicts)
    compiled = machine_options.torch_compile(settings.use_torch_compile, device, capabilities, conflicts)
    encoders = encoder_options.resolve(settings, device, capabilities, conflicts, torch=torch)
    conflicts += _conflicts(settings, engine, model.value, capabilities)
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
        *((_ATTENTION, graphs, compiled, *encoders) if torch else ()),
        Option("aligner", bool(aligner_id), aligner_id, aligner_reason),
        numa_node,
        *_beside(settings, model.value),
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
        node=node,
    )


def _remote(settings: Settings, capabilities: Capabilities) -> Plan:
    conflicts: list[str] = []
    device, device_reason = (
        ("cpu", "") if not capabilities.qwen else machine_options.device(settings.device, capabilities, conflicts)
    )
    dtype, dtype_reason = machine_options.dtype(settings, device, capabilities) if capabilities.qwen else _ONLY_DTYPE
    model = _model(settings.model_id, device)
    if settings.model_id == model_options.AUTO_MODEL and not settings.use_vllm:
        model = Option(
            "model", True, REMOTE, f"MODEL_ID={model_options.AUTO_MODEL}: the first that the remote engine lists"
        )
    numa_node, node = machine_options.numa_node(settings.numa_node, capabilities, conflicts)
    conflicts += [*_server_conflicts(settings, capabilities), *remote_options.conflicts(settings, capabilities)]
    if conflicts:
        raise PlanError("\n".join(conflicts))
    aligner_id, aligner_reason = _aligner(settings, REMOTE)
    if not capabilities.qwen:
        aligner_id, aligner_reason = "", "the packages of Qwen3-ASR are not installed; word times are estimated"
    max_batch = settings.max_batch or remote_options.CONNECTIONS
    aligner_parts = (
        Option("device", True, device, f"of the aligner: {device_reason}"),
        Option("dtype", True, dtype, f"of the aligner: {dtype_reason}"),
    )
    options = (
        Option("engine", True, REMOTE, remote_options.where(settings)),
        model,
        *(aligner_parts if aligner_id else ()),
        *remote_options.batching(max_batch),
        Option("aligner", bool(aligner_id), aligner_id, aligner_reason),
        numa_node,
        *_beside(settings, model.value),
    )
    return Plan(
        engine=REMOTE,
        model_id=model.value,
        device=device,
        dtype=dtype,
        max_batch=max_batch,
        kv_budget_mb=0,
        options=options,
        aligner_id=aligner_id,
        aligner_revision=settings.forced_aligner_revision,
        traits=replace(_TRAITS[REMOTE], aligns=bool(aligner_id)),
        node=node,
        remote=remote_options.server(settings, capabilities, model.value, max_batch),
        speech_models=speech_options.models(settings, capabilities),
    )


def _others(settings: Settings, model_id: str, capabilities: Capabilities, conflicts: list[str]) -> list[Plan]:
    """Return the plans of the other models. What they cannot do is added to `conflicts`."""
    conflicts += model_options.conflicts(settings, model_id)
    plans = []
    for name in model_options.beside(settings, model_id):
        engine = ENGINES_BY_MODEL.get(name, QWEN)
        own = model_options.of_another(settings, name, qwen=engine == QWEN, fake=engine == FAKE)
        try:
            plans.append(_without_features(own, capabilities))
        except PlanError as error:
            conflicts += [f"{name}: {line}" for line in str(error).splitlines()]
    return plans


def _server_conflicts(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    yield from _speaker_conflicts(settings)
    yield from speech_options.conflicts(settings, capabilities)
    if settings.use_granian and "granian" not in capabilities.packages:
        yield "USE_GRANIAN: Granian is not installed: pip install '.[granian]', or unset it."
    if settings.jobs_database_url.get_secret_value() and "asyncpg" not in capabilities.packages:
        yield "JOBS_DATABASE_URL: asyncpg is not installed: pip install '.[postgres]', or unset it."


def _conflicts(settings: Settings, engine: str, model_id: str, capabilities: Capabilities) -> Iterator[str]:
    yield from _server_conflicts(settings, capabilities)
    if settings.vllm_api_key is not None:
        yield "VLLM_API_KEY is for VLLM_BASE_URL, which is not set."
    if settings.fake_engine_script is not None and engine != FAKE and not speech_options.is_scripted(settings):
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
    if engine != QWEN and settings.use_torch_compile:
        yield f"USE_TORCH_COMPILE=true: MODEL_ID={model_id} does not run in torch; unset it."
    if engine != QWEN and settings.cpu_threads:
        reason = machine_options.THREADS_REASON
        yield f"CPU_THREADS={settings.cpu_threads} is not available with MODEL_ID={model_id}: {reason}."
    if engine == MOONSHINE and settings.device not in ("auto", "cpu"):
        yield f"DEVICE={settings.device}: {moonshine.MODEL_ID} runs on the CPU only; unset it."
    if engine == MOONSHINE and settings.dtype not in (Dtype.AUTO, Dtype.FLOAT32):
        yield f"DTYPE={settings.dtype.value}: {moonshine.MODEL_ID} runs in float32 only; unset it."


def _beside(settings: Settings, model_id: str) -> Iterator[Option]:
    """Yield the options that do not concern the engine."""
    yield Option("gateway_mode", settings.gateway_mode, "", _GATEWAY_REASONS[settings.gateway_mode])
    yield _translation(settings)
    yield _speakers(settings)
    yield from speech_options.options(settings)
    yield from model_options.options(settings, model_id)
    yield remote_options.use_vllm(settings)
    yield Option("use_granian", settings.use_granian, "", _SERVER_REASONS[settings.use_granian])


def _translation(settings: Settings) -> Option:
    if settings.openai_base_url and settings.translate_model:
        return Option("translation", True, settings.translate_model, "by the endpoint at OPENAI_BASE_URL")
    return Option("translation", False, "", "OPENAI_BASE_URL and TRANSLATE_MODEL are not both set")


def _aligner(settings: Settings, engine: str) -> tuple[str, str]:
    """Return the aligner's id, "" for none, and the reason.

    The bundled models take the bundled aligner although the released one would fit too: they should need no download.
    """
    when = "loaded for the first word times, unloaded when idle"
    if engine == FAKE:
        return FAKE, f"MODEL_ID={FAKE} brings its own; {when}"
    if engine == MOONSHINE and "forced_aligner_id" not in settings.model_fields_set:
        return moonshine.MODEL_ID, "from the decoder's attention to the audio; FORCED_ALIGNER_ID is not set"
    if engine == QWEN and settings.model_id == DEMO and "forced_aligner_id" not in settings.model_fields_set:
        return DEMO, f"MODEL_ID={DEMO} brings its own, FORCED_ALIGNER_ID is not set; {when}"
    return settings.forced_aligner_id, when


def chosen_model(settings: Settings, capabilities: Capabilities) -> str:
    """MODEL_ID, or what `auto` stands for on this machine."""
    settings = model_options.with_default(settings)
    return _model(settings.model_id, machine_options.device(settings.device, capabilities, [])[0]).value


def _model(wanted: str, device: str) -> Option:
    if wanted != model_options.AUTO_MODEL:
        return Option("model", True, wanted, "as set")
    if device.startswith("cuda"):
        return Option("model", True, _GPU_MODEL, "MODEL_ID=auto: the larger model, for a GPU")
    return Option("model", True, _CPU_MODEL, "MODEL_ID=auto: the smaller model, for a CPU")


def _speakers(settings: Settings) -> Option:
    """Return the option `speakers`. Its value is what `SpeakerClient` takes."""
    wanted = settings.speakers
    if wanted == _SPEAKERS_OFF:
        return Option("speakers", False, "", "SPEAKERS=off")
    if wanted not in (_SPEAKERS_AUTO, EMBEDDED):
        where = "ONNX files of a directory" if os.path.isdir(wanted) else "ONNX files of the hub, downloaded once"
        return Option("speakers", True, wanted, f"{where}, {_SPEAKERS_WHEN}")
    reason = package.missing()
    if reason:
        return Option("speakers", False, "", f"SPEAKERS={wanted}: {reason}")
    return Option("speakers", True, EMBEDDED, f"pyannote community-1 {_SPEAKERS_WHEN}")


def _speaker_conflicts(settings: Settings) -> Iterator[str]:
    """Yield a sentence for what was asked for by name and cannot run."""
    wanted = settings.speakers
    if wanted in (_SPEAKERS_OFF, _SPEAKERS_AUTO):
        return
    if wanted == EMBEDDED:
        if reason := package.missing():
            yield f"SPEAKERS={EMBEDDED}: {reason}; unset it."
    elif os.path.isdir(wanted):
        if reason := model_source.missing(wanted):
            yield f"SPEAKERS={wanted}: {reason}."
    elif not is_hub_id(wanted):
        yield (
            f"SPEAKERS={wanted}: there is no such directory, and it is no hub id (owner/name); otherwise set it to "
            f"{_SPEAKERS_AUTO}, {_SPEAKERS_OFF} or {EMBEDDED}."
        )
