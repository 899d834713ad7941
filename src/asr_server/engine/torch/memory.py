"""The memory that is free, used and needed, and its return to the system."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from asr_server.core import idle
from asr_server.engine import host_memory

MIB = 1024 * 1024
# Activations of a pass by its shapes: 8,192 tokens in the widest layer of the language model take 150 MiB in 16 bits,
# the first convolution of 30 s of audio 180 MiB. Not measured on a GPU.
PASS_BYTES = 512 * MIB


def would_fit(model: Any, directory: Path, *, in_float32: Path | None = None) -> bool:
    """True if the weights in a directory, and those of another that stay in float32, seem to fit into the free memory,
    with the activations of a pass. `model` has `device`, `dtype` and `quantize` as the plan."""
    # In 8 bits the layers are there twice while they are made, which is as much as once in 16 bits.
    item_bytes = 4 if model.dtype == "float32" and not model.quantize else 2
    needed = parameters(directory) * item_bytes + PASS_BYTES
    needed += parameters(in_float32) * 4 if in_float32 is not None else 0
    return free_bytes(torch.device(model.device)) >= needed


def parameters(directory: Path) -> int:
    """Count the parameters by the headers of the weight files: their formats may differ from the one that is loaded."""
    total = 0
    for file in directory.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as header:
            total += sum(math.prod(header.get_slice(name).get_shape()) for name in header.keys())  # noqa: SIM118 - no dict
    return total


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
