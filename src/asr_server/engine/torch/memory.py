"""The memory that is free and used, and its return to the system. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asr_server.core import idle
from asr_server.engine import host_memory

MIB = 1024 * 1024


def free_bytes(device: torch.device) -> int:
    """Memory that could be taken now, of the GPU or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return host_memory.free_bytes()


def mapped_bytes(*modules: nn.Module) -> int:
    """Bytes of weights that are mapped from their files: the kernel counts them as free, and the engine needs them."""
    weights = {w.data_ptr(): w.nbytes for module in modules for w in module.parameters()}
    files = list(_mapped_files())
    return sum(nbytes for at, nbytes in weights.items() if any(start <= at < end for start, end in files))


def _mapped_files() -> Iterator[tuple[int, int]]:
    """Addresses [from, to) at which this process maps files. (Weights in the hub's cache have no ending.)"""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, path = line.split(maxsplit=5)
        if path.startswith("/"):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)


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
    """Return a host tensor on the device; to a GPU from pinned memory, without waiting for the copy."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def give_back() -> None:
    """Return freed memory to the driver and the system; worth its cost only after a model was unloaded."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    idle.trim_heap()
