"""The options of an engine that is a server elsewhere: `VLLM_BASE_URL` and `USE_VLLM`. Used by `plan.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from asr_server.core.setting_types import Dtype, Quantization
from asr_server.core.settings import Settings
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.model_options import AUTO_MODEL
from asr_server.engine.protocol import Option
from asr_server.engine.qwen_asr.checkpoint import DEMO
from asr_server.features.moonshine import package as moonshine

# Requests at once; vLLM runs as many as fit into its memory, and queues the others.
CONNECTIONS = 32
_BUNDLED = (DEMO, moonshine.MODEL_ID, "fake")
# Settings of a model that runs in this process.
_LOCAL_ONLY = (
    *("cpu_threads", "kv_budget_mb", "use_torch_compile", "fake_engine_script"),
    *("models", "fast_model_id", "dual_model", "use_speculative"),
    *("onnx_encoder_path", "trt_encoder_path", "use_causal_encoder"),
)


@dataclass(frozen=True, slots=True)
class Remote:
    """The server that runs the model in place of this one."""

    url: str = ""  # with its `/v1`; "" for a server that `command` starts
    key: str = field(default="", repr=False)
    model: str = ""  # its name there, "" for the first that it lists
    command: tuple[str, ...] = ()  # starts the server, without its address; () if it runs already


def is_remote(settings: Settings) -> bool:
    """True if the model runs elsewhere."""
    return settings.use_vllm or settings.vllm_base_url is not None


def where(settings: Settings) -> str:
    """Return where the model runs, in words."""
    return "USE_VLLM: `vllm serve` as a process of this server" if settings.use_vllm else "the server at VLLM_BASE_URL"


def use_vllm(settings: Settings) -> Option:
    """Return the option of that name, which every plan has."""
    if settings.use_vllm:
        return Option("use_vllm", True, "", "`vllm serve` runs the model, as a process of this server")
    runs = "the server at VLLM_BASE_URL" if settings.vllm_base_url is not None else "the engine of this server"
    return Option("use_vllm", False, "", f"not set; {runs} runs the model")


def batching(max_batch: int) -> tuple[Option, Option]:
    """Return how many requests there are at once, and what that means for answers."""
    reason = "most spans that are with the remote engine at once"
    return (
        Option("batching", max_batch > 1, str(max_batch) if max_batch > 1 else "", reason),
        Option("exact_batching", False, "", "the remote engine decides how it batches"),
    )


def server(settings: Settings, capabilities: Capabilities, model_id: str, max_batch: int) -> Remote:
    """Return the server that the settings name or start. `model_id`: what the plan calls the model."""
    if not settings.use_vllm:
        key = settings.vllm_api_key.get_secret_value() if settings.vllm_api_key else ""
        name = "" if settings.model_id == AUTO_MODEL else settings.model_id
        return Remote(str(settings.vllm_base_url).rstrip("/"), key, name)
    command: tuple[str, ...] = (capabilities.vllm, "serve", model_id, f"--max-num-seqs={max_batch}")
    command += (f"--dtype={settings.dtype.value}",) if settings.dtype is not Dtype.AUTO else ()
    command += (f"--revision={settings.model_revision}",) if settings.model_revision else ()
    return Remote(model=model_id, command=command)


def conflicts(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    """Yield a line for each setting that does not fit a model that runs elsewhere."""
    setting = "USE_VLLM" if settings.use_vllm else "VLLM_BASE_URL"
    unfit = [name for name in _LOCAL_ONLY if getattr(settings, name) != Settings.model_fields[name].default]
    unfit += ["quantize"] * (settings.quantize not in (Quantization.AUTO, Quantization.NONE))
    unfit += ["use_cuda_graphs"] * (settings.use_cuda_graphs is True)
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
    if settings.use_vllm and settings.model_id in _BUNDLED:
        yield f"USE_VLLM: vLLM does not run MODEL_ID={settings.model_id}; unset one of them."
    if settings.forced_aligner_id == moonshine.MODEL_ID:
        yield f"FORCED_ALIGNER_ID={moonshine.MODEL_ID} works with MODEL_ID={moonshine.MODEL_ID} only."
    if not capabilities.qwen and "forced_aligner_id" in settings.model_fields_set:
        yield f"FORCED_ALIGNER_ID={settings.forced_aligner_id}: pip install -r requirements.txt, or unset it."
