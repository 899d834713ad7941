"""What this machine and this installation offer, found out without importing anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`gpu`: an NVIDIA driver is loaded. `torch_cuda`: the installed torch is not a CPU-only build. `qwen`: the
    packages of the Qwen engine are installed. `numa_nodes`: how many memory nodes the machine has."""

    gpu: bool
    torch_cuda: bool
    qwen: bool = True
    numa_nodes: int = 1


def probe() -> Capabilities:
    """Look at the driver's files and at the metadata of the installed packages."""
    return Capabilities(
        gpu=Path("/proc/driver/nvidia/version").exists(),
        torch_cuda=not _version("torch", default="+cpu").endswith("+cpu"),
        qwen=all(_version(name) for name in ("torch", "transformers", "qwen-asr")),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
    )


def _version(package: str, default: str = "") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return default
