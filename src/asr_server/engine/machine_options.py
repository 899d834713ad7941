"""The options that depend on the machine: device, number formats, threads, CUDA graphs. Used by `plan.py`.

Each function returns an option with its reason. For a request that cannot be met it adds a line to `conflicts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from asr_server.core.setting_types import Dtype, Fusion, ModelLibrary, Quantization
from asr_server.core.settings import Settings
from asr_server.engine import gpu
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.cpu import BFLOAT16_FLAGS, INT8_FLAGS
from asr_server.engine.feature import OPENVINO, TORCH
from asr_server.engine.protocol import AS_SET, Option
from asr_server.engine.qwen_asr.checkpoint import DEMO

# The packages with the kernels for GPUs.
_PACKAGES = {Quantization.INT8: "bitsandbytes", Quantization.FP8: "torchao"}

# Measured on the 0.6B in bfloat16, one row (H100, 2026-11-22).
_GRAPHS_REASON = "a decode step is one call of the driver instead of six hundred, and takes a quarter of the time"
_RUNTIME_REASON = "a step is one call of a compiled graph instead of 1,460 of torch"
THREADS_REASON = "this engine's libraries choose their number themselves"
# torch.compile: the 0.6B's shape in 8 bits, two cores, medians of 45 steps in turns (2026-11-23).
_FOR_GPUS = "the kernels are for GPUs, and on a CPU a step takes 9 to 17 % longer with torch.compile"
_COMPILED = Fusion.COMPILE.value, "as set; loading takes longer, since what is fused is compiled there"
_FUSED = Fusion.KERNELS.value, "compared with torch's operations at the load; not measured on a GPU"
_INT4_REASON = "layers of the language model in groups of 64, head, embeddings and encoder in 8 bits"
_DEMO_REASON = f"MODEL_ID={DEMO}: 3 million weights, for which float32 is the fastest"


def device(wanted: str, capabilities: Capabilities, conflicts: list[str]) -> tuple[str, str]:
    """Return the device by torch's name, and why."""
    gpus = capabilities.gpus
    problems = ["no NVIDIA or AMD driver found"] * (not capabilities.gpu)
    if not capabilities.torch:
        problems.append("torch is not installed")
    elif not capabilities.torch_cuda:
        problems.append(f"the installed torch is a {gpus.build} build")
    problem = ", and ".join(problems)
    if wanted == "cpu" or (wanted == "auto" and problem):
        return "cpu", problem if wanted == "auto" else AS_SET
    if problem:
        repair = "pip uninstall torch, then pip install '.[gpu]'" if capabilities.torch else "pip install '.[gpu]'"
        conflicts.append(f"DEVICE={wanted}: {problem}; {repair}, or set DEVICE=cpu.")
    elif gpus.too_old:
        conflicts.append(
            f"DEVICE={wanted}: {gpus.too_old}. Update the driver, install a build of torch for an older CUDA, or set "
            "DEVICE=cpu."
        )
    if wanted == "auto":
        return "cuda", f"a driver ({gpus.driver or 'unknown'}) and a build of torch for it are installed"
    return wanted, AS_SET


def dtype(settings: Settings, device: str, capabilities: Capabilities) -> tuple[str, str]:
    """Return the number format by torch's name, or "auto" if it is only known after loading, and why."""
    if settings.dtype is not Dtype.AUTO:
        return settings.dtype.value, AS_SET
    gpus, rocm = capabilities.gpus, capabilities.gpus.build is gpu.Build.ROCM
    if device.startswith("cuda") and gpus.capability is None and not rocm:
        return Dtype.AUTO.value, "decided when the model is loaded, by the GPU's compute capability"
    if device.startswith("cuda"):
        return gpu.dtype(gpus.capability, gpus.cards, rocm=rocm)
    if settings.model_id == DEMO:
        return Dtype.FLOAT32.value, _DEMO_REASON
    if flag := _first(BFLOAT16_FLAGS, capabilities):
        return Dtype.BFLOAT16.value, f"the processor computes in it ({flag})"
    return Dtype.FLOAT32.value, f"the processor does not compute in bfloat16 ({' or '.join(BFLOAT16_FLAGS)})"


def runtime(wanted: ModelLibrary, device: str, dtype: str, capabilities: Capabilities, conflicts: list[str]) -> Option:
    """Choose the library that the model computes in."""
    problem = ""
    if device != "cpu":
        problem = "the GPU's kernels are in it"
    elif OPENVINO not in capabilities.packages:
        problem = "openvino is not installed"
    elif dtype != Dtype.FLOAT32 and not (dtype == Dtype.BFLOAT16 and _first(BFLOAT16_FLAGS, capabilities)):
        problem = f"OpenVINO does not compute in {dtype} on this processor"
    if wanted is ModelLibrary.OPENVINO and problem:
        conflicts.append(f"RUNTIME=openvino: {'it is for CPUs' if device != 'cpu' else problem}; unset it.")
    if wanted is ModelLibrary.TORCH or problem:
        if capabilities.qwen and not capabilities.torch:
            needed = problem or f"RUNTIME={TORCH}"
            conflicts.append(f"torch is needed ({needed}) and not installed: pip install '.[gpu]'.")
        return Option("runtime", True, TORCH, problem or AS_SET)
    return Option("runtime", True, OPENVINO, _RUNTIME_REASON)


def quantize(
    settings: Settings, device: str, capabilities: Capabilities, conflicts: list[str], *, runtime: str
) -> Option:
    """With `auto`, choose 8 bits only where they were measured to be faster. Refuse formats that this machine or engine
    cannot compute in. `runtime`: the chosen one, "" for an engine without 8-bit layers."""
    wanted = settings.quantize
    if wanted is Quantization.NONE:
        return Option("quantize", False, "", AS_SET)
    if not runtime:
        active, reason = "", "this engine has no 8-bit layers"
    elif device.startswith("cuda"):
        active, reason = _gpu_bits(wanted, capabilities)
    else:
        active, reason = _cpu_bits(settings, capabilities, runtime)
    if not active and wanted is not Quantization.AUTO:
        conflicts.append(f"QUANTIZE={wanted.value} is not available here: {reason}; unset it.")
    return Option("quantize", bool(active), active, reason)


def _cpu_bits(settings: Settings, capabilities: Capabilities, runtime: str) -> tuple[str, str]:
    """Return the 8- or 4-bit format of layers on a CPU, "" for none, and the reason."""
    flag = _first(INT8_FLAGS, capabilities)
    if settings.quantize is Quantization.INT4:
        return ("", "it is for OpenVINO") if runtime == TORCH else (Quantization.INT4.value, _INT4_REASON)
    if settings.quantize is Quantization.FP8:
        return "", "processors do not multiply in it"
    if runtime == TORCH:
        return "", "on a CPU 8 bits are OpenVINO's"
    if settings.quantize is Quantization.AUTO and settings.model_id == DEMO:
        return "", _DEMO_REASON
    if not flag:
        return Quantization.INT8.value, "a step reads a quarter of the bytes; products are in float32"
    return Quantization.INT8.value, f"the processor multiplies 8-bit integers ({flag})"


def _gpu_bits(wanted: Quantization, capabilities: Capabilities) -> tuple[str, str]:
    """Return the 8-bit format of layers on a GPU, "" for none, and the reason."""
    if wanted is Quantization.AUTO:
        return "", "on a GPU 8 bits save memory; QUANTIZE=int8 or fp8 chooses them"
    if wanted not in _PACKAGES:
        return "", "4 bits are for CPUs"
    package = _PACKAGES[wanted]
    if capabilities.gpus.build is gpu.Build.ROCM:
        return "", "not tried on AMD's GPUs"
    if package not in capabilities.packages:
        return "", f"the package {package} is not installed (pip install '.[quantize]')"
    cards = ", ".join(sorted(set(capabilities.gpus.cards)))
    if problem := gpu.eight_bit_problem(wanted.value, capabilities.gpus.capability, cards):
        return "", problem
    return wanted.value, f"as set; half of the memory for linear layers, by {package}"


def cuda_graphs(settings: Settings, device: str, capabilities: Capabilities, conflicts: list[str]) -> Option:
    """Decide whether to record decode steps. A GPU that cannot record them is used without recording."""
    wanted, problem = settings.use_cuda_graphs, "" if device.startswith("cuda") else "for GPUs"
    if wanted == "auto" and not problem and capabilities.gpus.build is gpu.Build.ROCM:
        problem = "not tried on AMD's GPUs; USE_CUDA_GRAPHS=true tries it"
    if wanted is True and problem:
        conflicts.append(f"USE_CUDA_GRAPHS=true is not available here: {problem}; unset it.")
    reason = problem or (_GRAPHS_REASON if wanted else AS_SET)
    return Option("use_cuda_graphs", bool(wanted) and not problem, "", reason)


def fusion(
    settings: Settings, device: str, capabilities: Capabilities, conflicts: list[str], *, runtime: str
) -> Option:
    """Choose how small operations are fused. A GPU on which the server's own kernels fail is used without them."""
    wanted, on_gpu, problem = settings.fuse, device.startswith("cuda"), ""
    if wanted is Fusion.NONE:
        return Option("fuse", False, "", AS_SET)
    compiles = wanted is Fusion.COMPILE
    if compiles and runtime == OPENVINO:
        problem = "for RUNTIME=torch; OpenVINO compiles the whole graph"
    elif not compiles and not on_gpu:
        problem = _FOR_GPUS
    elif on_gpu and "triton" not in capabilities.packages:
        problem = "the package triton is not installed"
    elif compiles and not capabilities.compiler:
        problem = "a C++ compiler (g++ or clang++) is not installed"
    elif wanted is Fusion.AUTO and capabilities.gpus.build is gpu.Build.ROCM:
        problem = "not tried on AMD's GPUs; FUSE=kernels tries them"
    if problem and wanted is not Fusion.AUTO:
        conflicts.append(f"FUSE={wanted.value} is not available here: {problem}; unset it.")
    if problem:
        return Option("fuse", False, "", problem)
    return Option("fuse", True, *(_COMPILED if compiles else _FUSED))


def exact_batching(device: str, dtype: str, quantize: Option) -> Option:
    """Say whether batching can change the tokens of a row."""
    if device == "cpu" and dtype == Dtype.FLOAT32.value and not quantize.active:
        return Option("exact_batching", True, dtype, "the ids of a row are those that it has alone")
    formats = f"{quantize.value} with {dtype}" if quantize.active else dtype
    reason = f"in {formats} on {device}, near ties may be decided differently alone and in a batch"
    return Option("exact_batching", False, "", f"{reason}; committed live words never change")


def threads(wanted: int, capabilities: Capabilities, *, torch: bool) -> Option:
    """Choose the number of computing threads. `torch`: whether the engine computes in torch or OpenVINO."""
    if not torch:
        return Option("cpu_threads", False, "", THREADS_REASON)
    share = capabilities.cpu
    return Option("cpu_threads", True, str(wanted or share.threads), AS_SET if wanted else share.reason)


def _first(flags: Sequence[str], capabilities: Capabilities) -> str:
    return next((flag for flag in flags if flag in capabilities.cpu_flags), "")
