"""The settings of the engine: the model, the device, the options. A part of `core/settings.py`.

Whether a machine can do what they ask for is decided in `engine/plan.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AnyHttpUrl, BaseModel, Field, SecretStr, field_validator

from asr_server.core.setting_types import Dtype, Quantization


class EngineSettings(BaseModel):
    """The settings that the plan of the engine is resolved from."""

    model_id: str = Field(
        "auto",
        min_length=1,
        description="Model: a hub id, a directory, `moonshine-tiny-en` (English, bundled), or `demo` (a bundled "
        "checkpoint for tests); `auto` is `Qwen/Qwen3-ASR-1.7B` on a GPU and `Qwen/Qwen3-ASR-0.6B` on a CPU.",
    )
    model_revision: str = Field(
        "",
        description="Commit, tag or branch of a model of the hub; empty: the one in the local cache, or the newest.",
    )
    model_aliases: str = Field(
        "",
        description="Comma-separated names that clients may send for the model, beside those that are built in; `*` "
        "stands for any characters.",
    )
    forced_aligner_id: str = Field(
        "Qwen/Qwen3-ForcedAligner-0.6B",
        min_length=1,
        description="Forced aligner for word times: a hub id, a directory, or `demo` (the default with MODEL_ID=demo). "
        "With MODEL_ID=moonshine-tiny-en the default is that model's own attention.",
    )
    forced_aligner_revision: str = Field("", description="The same for the forced aligner.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`auto`, `cpu`, `cuda` or `cuda:N`.",
    )
    dtype: Dtype = Field(
        Dtype.AUTO,
        description="float32, bfloat16, float16; `auto`: bfloat16 where it is fast, else float16 (GPU) or float32.",
    )
    quantize: Quantization = Field(
        Quantization.AUTO,
        description="Linear layers in 8 bits: `int8`, `none`, or `auto`: on CPUs that have instructions for it.",
    )
    cpu_threads: int = Field(
        0, ge=0, le=1024, description="Threads that compute; 0: one for each core, within a container's quota."
    )
    numa_node: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        None, description="NUMA node whose CPUs and memory the engine uses; `auto`: that of the GPU."
    )
    use_cuda_graphs: bool | Literal["auto"] = Field("auto", description="CUDA graphs for steps; `auto`: NVIDIA only.")
    use_torch_compile: bool = Field(False, description="Fuse small operations of the layers by torch.compile.")
    max_batch: int = Field(0, ge=0, le=256, description="Most spans in one batch; 0: 8 on a CPU, 32 on a GPU.")
    kv_budget_mb: int = Field(
        0, ge=0, description="MiB for keys and values; 0: derived from the free memory after loading."
    )
    vllm_base_url: AnyHttpUrl | None = Field(
        None,
        description="URL, with its `/v1`, of a server with OpenAI's transcriptions that runs the model, such as "
        "`vllm serve` or another asr-server. `MODEL_ID` is the model's name there; `auto`: the first that it lists.",
    )
    vllm_api_key: SecretStr | None = Field(None, description="Key of that server, if it needs one.")
    use_vllm: bool = Field(False, description="Start `vllm serve`, which must be installed, and let it run the model.")
    models: str = Field(
        "",
        description="Comma-separated models that stay beside `MODEL_ID`, by the names that requests pick them with; "
        "without `MODEL_ID` the first is the default.",
    )
    fast_model_id: str = Field("", description="A smaller model, for `DUAL_MODEL` and `USE_SPECULATIVE`.")
    dual_model: bool = Field(
        False, description="`FAST_MODEL_ID` writes live partials, `MODEL_ID` finals and recordings."
    )
    use_speculative: bool = Field(
        False, description="`FAST_MODEL_ID` drafts recordings and finals, and `MODEL_ID` verifies the draft."
    )
    onnx_encoder_path: str = Field("", description="Run the audio encoder from a file of `asr-server export onnx`.")
    trt_encoder_path: str = Field("", description="Run the audio encoder from a file of `asr-server export tensorrt`.")
    use_causal_encoder: bool = Field(
        False, description="For checkpoints tuned for it: encode live audio once, causally."
    )

    fake_engine_script: Path | None = Field(
        None,
        description="For tests: file with the script of `MODEL_ID=fake` and `SPEECH=fake`, engines with scripted "
        "answers and faults.",
    )

    @field_validator("vllm_api_key")
    @classmethod
    def _fits_into_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        key = value.get_secret_value() if value else ""
        if not (key.isascii() and key.isprintable()):
            raise ValueError("a key may have printable ASCII characters only: it must fit into a header")
        return value
