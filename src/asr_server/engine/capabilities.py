"""What this machine and this installation offer, found out without importing anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`gpu`: an NVIDIA driver is loaded. `torch_cuda`: the installed torch is not a CPU-only build."""

    gpu: bool
    torch_cuda: bool


def probe() -> Capabilities:
    """Look at the driver's files and at the metadata of the installed packages."""
    return Capabilities(gpu=Path("/proc/driver/nvidia/version").exists(), torch_cuda=_torch_has_cuda())


def _torch_has_cuda() -> bool:
    try:
        return not metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False
