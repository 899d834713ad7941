"""The options of an engine that is a server elsewhere: `VLLM_BASE_URL` and `USE_VLLM`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from asr_server.core.setting_types import Dtype, Quantization
from asr_server.core.settings import Settings
from asr_server.engine import machine_options, model_options, plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.feature import Asked, ModelServer, Plan
from asr_server.engine.protocol import EngineTraits, Option

ENGINE = "remote"
# Requests at once; vLLM runs as many as fit into its memory, and queues the others.
CONNECTIONS = 32
# vLLM cuts longer audio itself, anywhere.
_TRAITS = EngineTraits(max_audio_s=30.0, scores=False, detects_among=False)
# Settings of a model that runs in this process.
_LOCAL_ONLY = (
    *("cpu_threads", "kv_budget_mb", "use_torch_compile", "fake_engine_script"),
    *("models", "fast_model_id", "dual_model", "use_speculative"),
    *("onnx_encoder_path", "trt_encoder_path", "use_causal_encoder"),
)


def is_remote(settings: Settings) -> bool:
    """True if the model runs elsewhere."""
    return settings.use_vllm or settings.vllm_base_url is not None


def options(asked: Asked) -> Iterator[Option]:
    """Yield the option `use_vllm`, which every plan has."""
    if asked.settings.use_vllm:
        yield Option("use_vllm", True, "", "`vllm serve` runs the model, as a process of this server")
        return
    elsewhere = asked.settings.vllm_base_url is not None
    runs = "the server at VLLM_BASE_URL" if elsewhere else "the engine of this server"
    yield Option("use_vllm", False, "", f"not set; {runs} runs the model")


def conflicts(asked: Asked) -> Iterator[str]:
    """Yield a sentence where there is a key for no server."""
    if asked.settings.vllm_api_key is not None and not is_remote(asked.settings):
        yield "VLLM_API_KEY is for VLLM_BASE_URL, which is not set."


def resolve(asked: Asked, only_here: Collection[str]) -> Plan:
    """Return the plan for a model that runs elsewhere, with an aligner that runs here. Raises `PlanError`."""
    settings, capabilities, refused = asked.settings, asked.capabilities, list[str]()
    device, device_reason = "cpu", ""
    dtype, dtype_reason = plan.ONLY_DTYPE
    aligner_id = ""
    aligner_reason = "the packages of Qwen3-ASR are not installed; word times are estimated"
    if capabilities.qwen:
        device, device_reason = machine_options.device(settings.device, capabilities, refused)
        dtype, dtype_reason = machine_options.dtype(settings, device, capabilities)
        aligner_id, aligner_reason = settings.forced_aligner_id, plan.ALIGNER_WHEN
    model = plan.model_option(settings.model_id, device, asked.capabilities)
    if settings.model_id == model_options.AUTO_MODEL and not settings.use_vllm:
        model = Option("model", True, ENGINE, f"MODEL_ID={settings.model_id}: the first that the remote engine lists")
    place = plan.placement(asked, refused)
    refused += _misfits(asked, only_here)
    if refused:
        raise plan.PlanError("\n".join(refused))
    max_batch = settings.max_batch or CONNECTIONS
    aligner_parts = (
        Option("device", True, device, f"of the aligner: {device_reason}"),
        Option("dtype", True, dtype, f"of the aligner: {dtype_reason}"),
    )
    where = "USE_VLLM: `vllm serve` as a process of this server" if settings.use_vllm else "the server at VLLM_BASE_URL"
    chosen = (
        Option("engine", True, ENGINE, where),
        model,
        *(aligner_parts if aligner_id else ()),
        *_batching(max_batch),
        Option("aligner", bool(aligner_id), aligner_id, aligner_reason),
        *filter(None, [place.option]),
        *model_options.options(settings, model.value),
    )
    return Plan(
        engine=ENGINE,
        model_id=model.value,
        device=device,
        dtype=dtype,
        max_batch=max_batch,
        kv_budget_mb=0,
        options=chosen,
        aligner_id=aligner_id,
        aligner_revision=settings.forced_aligner_revision,
        traits=replace(_TRAITS, aligns=bool(aligner_id)),
        bind=place.bind,
        remote=_server(settings, capabilities, model.value, max_batch),
        features=asked.features,
    )


def _batching(max_batch: int) -> tuple[Option, Option]:
    """Return how many requests there are at once, and what that means for answers."""
    reason = "most spans that are with the remote engine at once"
    return (
        Option("batching", max_batch > 1, str(max_batch) if max_batch > 1 else "", reason),
        Option("exact_batching", False, "", "the remote engine decides how it batches"),
    )


def _server(settings: Settings, capabilities: Capabilities, model_id: str, max_batch: int) -> ModelServer:
    """Return the server that the settings name or start. `model_id`: what the plan calls the model."""
    if not settings.use_vllm:
        key = settings.vllm_api_key.get_secret_value() if settings.vllm_api_key else ""
        name = "" if settings.model_id == model_options.AUTO_MODEL else settings.model_id
        return ModelServer(str(settings.vllm_base_url).rstrip("/"), key, name)
    command: tuple[str, ...] = (capabilities.vllm, "serve", model_id, f"--max-num-seqs={max_batch}")
    command += (f"--dtype={settings.dtype.value}",) if settings.dtype is not Dtype.AUTO else ()
    command += (f"--revision={settings.model_revision}",) if settings.model_revision else ()
    return ModelServer(model=model_id, command=command)


def _misfits(asked: Asked, only_here: Collection[str]) -> Iterator[str]:
    """Yield a line for each setting that does not fit a model that runs elsewhere."""
    settings, capabilities = asked.settings, asked.capabilities
    setting = "USE_VLLM" if settings.use_vllm else "VLLM_BASE_URL"
    unfit = [name for name in _LOCAL_ONLY if getattr(settings, name) != Settings.model_fields[name].default]
    unfit += ["quantize"] * (settings.quantize not in (Quantization.AUTO, Quantization.NONE))
    unfit += [name for name in ("use_cuda_graphs", "use_fused_kernels") if getattr(settings, name) is True]
    unfit += ["model_revision"] * bool(settings.model_revision and not settings.use_vllm)
    for name in unfit:
        yield f"{name.upper()} is for a model that runs in this process, and with {setting} none does: unset it."
    if settings.use_vllm and settings.vllm_base_url is not None:
        yield "USE_VLLM starts a server, and VLLM_BASE_URL names one that runs: unset one of them."
    if settings.use_vllm and not capabilities.vllm:
        yield (
            "USE_VLLM: there is no command `vllm`. Install it (https://docs.vllm.ai), for example in an environment of "
            "its own whose commands are on PATH, or set VLLM_BASE_URL to a server that runs."
        )
    if settings.use_vllm and settings.model_id in only_here:
        yield f"USE_VLLM: vLLM does not run MODEL_ID={settings.model_id}; unset one of them."
    yield from plan.aligner_conflicts(asked)
    if not capabilities.qwen and "forced_aligner_id" in settings.model_fields_set:
        yield f"FORCED_ALIGNER_ID={settings.forced_aligner_id}: pip install '.[cpu]', or unset it."
