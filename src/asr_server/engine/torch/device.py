"""The choices for a GPU once torch is imported: whether it can be used, the number format, the kernels."""

from __future__ import annotations

import torch
from loguru import logger

from asr_server.core.errors import ModelUnavailable
from asr_server.core.setting_types import Dtype
from asr_server.engine import gpu
from asr_server.engine.protocol import Option


def prepare(device: str, dtype: str, quantize: str = "", *, threads: int = 0) -> tuple[torch.dtype, tuple[Option, ...]]:
    """Check the device and set the process' switches for it. `dtype`: as in the plan, "auto" is decided here.
    `quantize`: the plan's 8-bit format, checked here against the device. `threads`: as in the plan, for the passes of
    this thread; 0 keeps torch's number.

    Returns the number format, and the decisions as options of the plan. Raises `ModelUnavailable`.
    """
    if threads:
        torch.set_num_threads(threads)
    if not device.startswith("cuda"):
        return getattr(torch, dtype), ()
    capability = _capability(device)
    if quantize and (problem := gpu.eight_bit_problem(quantize, capability, torch.cuda.get_device_name(device))):
        raise ModelUnavailable(f"QUANTIZE={quantize}: {problem}; unset it.")
    tune()
    rocm = torch.version.hip is not None
    chosen, reason = dtype, "as set"
    if dtype == Dtype.AUTO:
        chosen, reason = gpu.dtype(capability, [torch.cuda.get_device_name(device)], rocm=rocm)
    if chosen == Dtype.BFLOAT16 and not rocm and capability < gpu.BFLOAT16_FROM:
        reason += f"; slow, the GPU has no units for it (compute capability {'.'.join(map(str, capability))})"
    return getattr(torch, chosen), (_told(Option("dtype", True, chosen, reason)),)


def attention_options(device: str, problem: str) -> tuple[Option, ...]:
    """Return the choice of attention on a GPU, as options of the plan. `problem`: why rows of any lengths do not attend
    in one call, empty if they do."""
    if not device.startswith("cuda"):
        return ()
    if problem:
        reason = f"torch's own kernels: {', '.join(kernels())}, with padding: without it, {problem}"
        return (_told(Option("attention", True, "sdpa", reason)),)
    reason = "FlashAttention over rows of any lengths; compared with torch's other kernels at the load"
    return (_told(Option("attention", True, "variable-length", reason)),)


def _told(option: Option) -> Option:
    """Return the option, logged."""
    logger.info("option", name=option.name, value=option.value, reason=option.reason)
    return option


def tune() -> None:
    """Set process-wide switches for a GPU.

    In a 16-bit model TF32 would only be used for the angles of rotary positions, and would lose their last bits. cuDNN
    would try all algorithms for every new shape of a convolution, and plan attention anew for every shape.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def kernels() -> list[str]:
    """Return the kernels that attention may use, torch's first choice first."""
    backends = torch.backends.cuda
    enabled = {
        "flash": backends.flash_sdp_enabled(),
        "memory-efficient": backends.mem_efficient_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
        "cuDNN": backends.cudnn_sdp_enabled(),
    }
    return [name for name, on in enabled.items() if on]


def _capability(device: str) -> tuple[int, int]:
    """Return the compute capability of a GPU. Raises `ModelUnavailable` if torch cannot use it or has no kernels."""
    if not torch.cuda.is_available():
        raise ModelUnavailable(
            f"DEVICE={device}: this torch build ({torch.__version__}) or driver offers no CUDA. Run "
            "pip install '.[gpu]' and check the driver, or set DEVICE=cpu."
        )
    try:
        capability = torch.cuda.get_device_capability(device)
    except (RuntimeError, AssertionError) as error:  # it does not exist, or another process uses it exclusively
        raise ModelUnavailable(f"DEVICE={device}: {str(error).splitlines()[0]}") from error
    if torch.version.hip is None and not _has_kernels(capability, torch.cuda.get_arch_list()):
        raise ModelUnavailable(
            f"DEVICE={device}: this torch build ({torch.__version__}) has no kernels for compute capability "
            f"{'.'.join(map(str, capability))}. Install a build that has, for older GPUs one for CUDA 12.6, or set "
            "DEVICE=cpu."
        )
    return capability


def _has_kernels(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Return True if kernels for `architectures` run on the GPU. Its major version must be equal, and its minor one
    equal or newer. Code for `compute_...` is compiled for any newer GPU when it is first used."""
    for name in architectures:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")
        built = int(digits[:-1]), int(digits[-1])
        if built == capability or (built < capability and (kind == "compute" or built[0] == capability[0])):
            return True
    return False
