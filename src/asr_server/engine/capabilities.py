"""The abilities of this machine and this installation, found out without importing anything heavy."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from asr_server.engine import cpu, gpu
from asr_server.engine.cpu import ONE_THREAD, CpuShare
from asr_server.engine.gpu import NO_GPU, Gpus

# Packages that an option needs and the server does without.
OPTIONAL = (
    *("asyncpg", "bitsandbytes", "granian", "moonshine-voice", "onnxruntime-gpu", "openvino", "qwen-tts", "tensorrt"),
    *("torchao", "triton"),
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The hardware and the packages that a plan can use."""

    gpu: bool  # there is a driver for a GPU
    torch_cuda: bool  # the installed torch is a build for such a GPU
    qwen: bool = True  # the packages of the Qwen engine are installed, in one of its libraries
    torch: bool = True  # torch is installed
    packages: frozenset[str] = frozenset()  # the installed ones of `OPTIONAL`
    gpus: Gpus = NO_GPU  # what is known of driver, cards and torch
    cpu_flags: frozenset[str] = frozenset()  # the processor's instruction sets by the kernel's names
    cpu: CpuShare = ONE_THREAD  # how much of the processor this process may use
    compiler: str = ""  # path of a C++ compiler, "" for none
    vllm: str = ""  # path of the command `vllm`, "" for none


def probe() -> Capabilities:
    """Look at the driver's files and at the metadata of the installed packages."""
    gpus = gpu.probe()
    torch = bool(version("torch"))
    return Capabilities(
        gpu=gpus.driver is not gpu.Driver.NONE,
        torch_cuda=gpus.build_fits,
        gpus=gpus,
        qwen=bool(version("tokenizers") and (torch or version("openvino"))),
        torch=torch,
        packages=frozenset(name for name in OPTIONAL if version(name)),
        cpu_flags=cpu.flags(),
        cpu=cpu.share(),
        compiler=next((path for name in ("g++", "clang++") if (path := shutil.which(name))), ""),
        vllm=shutil.which("vllm", path=str(Path(sys.executable).parent)) or shutil.which("vllm") or "",
    )


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
