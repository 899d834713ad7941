"""What this machine and this installation offer, found out without importing anything heavy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from asr_server.engine import cpu, gpu
from asr_server.engine.cpu import ONE_THREAD, CpuShare
from asr_server.engine.gpu import NO_GPU, Gpus

# Packages that an option needs and the server does without.
OPTIONAL = ("bitsandbytes", "torchao", "onnxruntime-gpu", "tensorrt")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`gpu`: there is a driver for a GPU. `torch_cuda`: the installed torch is a build for such a GPU. `gpus`: what is
    known of both. `qwen`: the packages of the Qwen engine are installed. `numa_nodes`: how many memory nodes the
    machine has. `packages`: which of `OPTIONAL` are installed. `cpu_flags`: the processor's instruction sets by the
    kernel's names. `cpu`: how much of the processor this process may use."""

    gpu: bool
    torch_cuda: bool
    qwen: bool = True
    numa_nodes: int = 1
    packages: frozenset[str] = frozenset()
    gpus: Gpus = NO_GPU
    cpu_flags: frozenset[str] = frozenset()
    cpu: CpuShare = ONE_THREAD


def probe() -> Capabilities:
    """Look at the driver's files and at the metadata of the installed packages."""
    gpus = gpu.probe()
    return Capabilities(
        gpu=gpus.driver is not gpu.Driver.NONE,
        torch_cuda=gpus.build_fits,
        gpus=gpus,
        qwen=all(_version(name) for name in ("torch", "transformers", "qwen-asr")),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))),
        packages=frozenset(name for name in OPTIONAL if _version(name)),
        cpu_flags=cpu.flags(),
        cpu=cpu.share(),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
