"""The memory of a GPU, and weights of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from asr_server.engine import memory


def addresses(*modules: nn.Module) -> dict[int, int]:
    """Return the bytes of each weight by its address."""
    return {w.data_ptr(): w.nbytes for module in modules for w in module.parameters()}


def gpu_figures(device: torch.device) -> dict[str, Any]:
    """Name and memory of the GPU as fields of `EngineInfo`; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_name": torch.cuda.get_device_name(device),
        "gpu_allocated_mb": torch.cuda.memory_allocated(device) // memory.MIB,
        "gpu_reserved_mb": torch.cuda.memory_reserved(device) // memory.MIB,
    }


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a host tensor on the device; to a GPU from pinned memory, without waiting for the copy."""
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
