"""What this machine and this installation offer, found out without importing anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from asr_server.engine import cpu
from asr_server.engine.cpu import ONE_THREAD, CpuShare


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`gpu`: an NVIDIA driver is loaded. `torch_cuda`: the installed torch is not a CPU-only build. `qwen`: the
    packages of the Qwen engine are installed. `numa_nodes`: how many memory nodes the machine has. `cpu_flags`: the
    processor's instruction sets by the kernel's names. `cpu`: how much of the processor this process may use."""

    gpu: bool
    torch_cuda: bool
    qwen: bool = True
    numa_nodes: int = 1
    cpu_flags: frozenset[str] = frozenset()
    cpu: CpuShare = ONE_THREAD


def probe() -> Capabilities:
    """Look at the driver's files and at the metadata of the installed packages."""
    return Capabilities(
        gpu=Path("/proc/driver/nvidia/version").exists(),
        torch_cuda=not _version("torch", default="+cpu").endswith("+cpu"),
        qwen=all(_version(name) for name in ("torch", "transformers", "qwen-asr")),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        cpu_flags=cpu.flags(),
        cpu=cpu.share(),
    )


def _version(package: str, default: str = "") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return default
