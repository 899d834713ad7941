"""The remote engine: the model runs in a server with OpenAI's transcriptions, `vllm serve` or another asr-server.

Its plan follows from `VLLM_BASE_URL` and `USE_VLLM`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from asr_server.core.setting_types import Dtype, Fusion, Quantization
from asr_server.core.settings import Settings
from asr_server.engine import machine_options, plan
from asr_server.engine.feature import Asked, Feature, ModelServer, OnProgress, Plan
from asr_server.engine.protocol import Engine, EngineTraits, Option
from asr_server.engine.qwen_asr.checkpoint import at_revision

# Concurrent requests. vLLM runs as many as fit into its memory, and queues the others.
_CONNECTIONS = 32
# vLLM itself cuts longer audio, at any place.
_TRAITS = EngineTraits(max_audio_s=30.0, scores=False, detects_among=False)
# Settings of a model that runs in this process.
_LOCAL_ONLY = (
    *("cpu_threads", "kv_budget_mb", "quantize", "use_cuda_graphs", "fuse", "encoder_path"),
    *("fast_model_id", "dual_model", "use_speculative"),
)


def is_remote(settings: Settings) -> bool:
    return settings.use_vllm or settings.vllm_base_url is not None


def _options(asked: Asked) -> Iterator[Option]:
    reasons = {True: "`vllm serve` runs the model, as a process of this server", False: "not set"}
    yield Option("use_vllm", asked.settings.use_vllm, "", reasons[asked.settings.use_vllm])


def _conflicts(asked: Asked) -> Iterator[str]:
    if asked.settings.vllm_api_key is not None and not is_remote(asked.settings):
        yield "VLLM_API_KEY is for VLLM_BASE_URL, which is not set."


def _resolve(asked: Asked, only_here: Collection[str]) -> Plan | None:
    """Return the plan for a model that runs elsewhere, with an aligner that runs here; None if the model runs here.

    Raises `PlanError`.
    """
    settings, capabilities, refused = asked.settings, asked.capabilities, list[str]()
    if not is_remote(settings):
        return None
    device, dtype, aligner, aligner_revision = "cpu", plan.ONLY_DTYPE[0], "", ""
    reason, aligner_options = "the packages of Qwen3-ASR are not installed; word times are estimated", list[Option]()
    if capabilities.qwen:
        device, why_device = machine_options.device(settings.device, capabilities, refused)
        dtype, why_dtype = machine_options.dtype(settings, device, capabilities)
        (aligner, aligner_revision), reason = at_revision(settings.forced_aligner_id), plan.ALIGNER_WHEN
        aligner_options = [
            Option("device", True, device, f"of the aligner: {why_device}"),
            Option("dtype", True, dtype, f"of the aligner: {why_dtype}"),
        ]
    model_id, revision = at_revision(settings.model_id) if settings.use_vllm else (settings.model_id, "")
    model = plan.model_option(model_id, device, capabilities)
    if settings.model_id == plan.AUTO_MODEL and not settings.use_vllm:
        model = replace(model, value="remote", reason="MODEL_ID=auto: the first that the remote engine lists")
    if refused := [*refused, *_misfits(asked, only_here)]:
        raise plan.PlanError("\n".join(refused))
    rows = settings.max_batch or _CONNECTIONS
    return Plan(
        engine="remote",
        model_id=model.value,
        device=device,
        dtype=dtype,
        max_batch=rows,
        kv_budget_mb=0,
        options=(
            Option("engine", True, "remote", f"{'USE_VLLM' if settings.use_vllm else 'VLLM_BASE_URL'} runs the model"),
            model,
            *aligner_options,
            Option("batching", rows > 1, str(rows), "most spans that are with the remote engine at once"),
            Option("exact_batching", False, "", "the remote engine decides how it batches"),
            Option("aligner", bool(aligner), aligner, reason),
            *plan.models_options(settings, model.value),
        ),
        aligner_id=aligner,
        aligner_revision=aligner_revision,
        traits=replace(_TRAITS, aligns=bool(aligner)),
        remote=_server(asked, model.value, revision, rows),
        build=_build,
        features=asked.features,
    )


def _build(plan: Plan, *progress: OnProgress) -> Engine:
    from asr_server.features.remote_engine.engine import RemoteEngine

    return RemoteEngine(plan, *progress)


def _server(asked: Asked, model_id: str, revision: str, rows: int) -> ModelServer:
    settings = asked.settings
    if not settings.use_vllm:
        key = settings.vllm_api_key.get_secret_value() if settings.vllm_api_key else ""
        name = "" if settings.model_id == plan.AUTO_MODEL else settings.model_id
        return ModelServer(str(settings.vllm_base_url).rstrip("/"), key, name)
    command = [asked.capabilities.vllm, "serve", model_id, f"--max-num-seqs={rows}"]
    command += [f"--dtype={settings.dtype.value}"] * (settings.dtype is not Dtype.AUTO)
    command += [f"--revision={revision}"] * bool(revision)
    return ModelServer(model=model_id, command=tuple(command))


def _misfits(asked: Asked, only_here: Collection[str]) -> Iterator[str]:
    """Yield a line for each setting that does not fit a model that runs elsewhere."""
    settings, capabilities = asked.settings, asked.capabilities
    setting = "USE_VLLM" if settings.use_vllm else "VLLM_BASE_URL"
    for name in _LOCAL_ONLY:
        if getattr(settings, name) not in (Settings.model_fields[name].default, False, Quantization.NONE, Fusion.NONE):
            yield f"{name.upper()} is for a model that runs in this process, and with {setting} none does: unset it."
    if len(settings.model_names) > 1:
        yield f"MODEL_ID names several models, and with {setting} one runs: name one."
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


FEATURE = Feature("remote_engine", options=_options, conflicts=_conflicts, elsewhere=_resolve)
