"""The memory of a GPU and of torch's weights, and copies between host and device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def addresses(*modules: nn.Module) -> dict[int, int]:
    return {w.data_ptr(): w.nbytes for module in modules for w in module.parameters()}


def gpu_figures(device: torch.device) -> dict[str, Any]:
    """Return the name and memory of the GPU as fields of `EngineInfo`; empty on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "gpu_name": torch.cuda.get_device_name(device),
        "gpu_allocated_mb": torch.cuda.memory_allocated(device) // 2**20,
        "gpu_reserved_mb": torch.cuda.memory_reserved(device) // 2**20,
    }


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a host tensor that can be copied to the device without waiting: for a GPU, in pinned memory."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return pinned(tensor, device).to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> Callable[[], list[Any]]:
    """Begin to copy a tensor to the host, after all work that is queued now and before any later work. Return a
    function that waits for the copy and returns its numbers."""
    if tensor.device.type != "cuda":
        return tensor.clone().tolist
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(tensor.device))

    def numbers() -> list[Any]:
        copied.synchronize()
        return copy.tolist()

    return numbers
