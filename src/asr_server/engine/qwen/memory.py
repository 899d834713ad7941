"""How much memory is free and used, and giving it back. The device's side of planning; decides nothing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

MIB = 1024 * 1024
_M_ARENA_MAX = -8  # malloc.h


def free_bytes(device: torch.device) -> int:
    """Memory that could be taken now: of the GPU, or what the kernel says is available."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) * 1024


def gpu_figures(device: torch.device) -> dict[str, Any]:
    """Name and memory of the GPU as fields of `EngineInfo`; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_name": torch.cuda.get_device_name(device),
        "gpu_allocated_mb": torch.cuda.memory_allocated(device) // MIB,
        "gpu_reserved_mb": torch.cuda.memory_reserved(device) // MIB,
    }


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on the device; to a GPU from pinned memory, without waiting for the copy."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def share_arenas() -> None:
    """Let the threads of the process share two of the C library's heaps. By default each gets its own, whose holes no
    other fills: 48 min of spans of all lengths then left 260 MiB behind instead of 205 (demo model, 2 cores)."""
    try:
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):  # another C library: it has its own policy
        return


def give_back() -> None:
    """Return freed memory to the driver and the system; worth its cost only after a model was unloaded."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # another C library: it has its own policy
        return
