"""The settings of the engine: which model, on which device, with which options. A part of `core/settings.py`.

Whether a machine can do what they ask for is decided in `engine/plan.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from asr_server.core.setting_types import Dtype, Quantization


class EngineSettings(BaseModel):
    """What the plan of the engine is resolved from."""

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
    use_cuda_graphs: bool | Literal["auto"] = Field("auto", description="CUDA graphs for steps; `auto`: NVIDIA only.")
    max_batch: int = Field(0, ge=0, le=256, description="Most spans in one batch; 0: 8 on a CPU, 32 on a GPU.")
    kv_budget_mb: int = Field(
        0, ge=0, description="MiB for keys and values; 0: derived from the free memory after loading."
    )
    onnx_encoder_path: str = Field("", description="Run the audio encoder from a file of `asr-server export onnx`.")
    trt_encoder_path: str = Field("", description="Run the audio encoder from a file of `asr-server export tensorrt`.")
    use_causal_encoder: bool = Field(
        False, description="For checkpoints tuned for it: encode live audio once, causally."
    )
    # Options of the product that this version does not have: setting one stops the start with the reason.
    dual_model: bool = Field(False, description="A fast model for live partials, an accurate one for finals.")
    use_speculative: bool = Field(False, description="Let a small model draft the text for the large one.")
    use_vllm: bool = Field(False, description="Decode with vLLM.")
    numa_node: int | None = Field(None, ge=0, description="Pin the process to one NUMA node.")
    use_granian: bool = Field(False, description="Serve with Granian instead of uvicorn.")

    fake_engine_script: Path | None = Field(
        None,
        description="For tests: file with the script of `MODEL_ID=fake`, an engine with scripted answers and faults.",
    )
