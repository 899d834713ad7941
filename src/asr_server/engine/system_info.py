"""CPU, memory, GPUs and libraries, for people to read. `capabilities` has what the plan depends on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The instruction sets that decide the engine's speed, newest first, by the kernel's names.
_CPU_FLAGS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
_LIBRARIES = ("torch", "transformers", "qwen-asr", "onnxruntime", "av")
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class SystemInfo:
    """The hardware and the libraries of this machine."""

    cpu: str
    cores: int  # those this process may use
    cpu_flags: tuple[str, ...]
    memory_gib: float
    memory_free_gib: float
    gpus: tuple[str, ...]  # their names, by the driver's files
    libraries: dict[str, str]  # versions; "" is missing


def look() -> SystemInfo:
    """Read the kernel's and the driver's files and the metadata of installed packages."""
    cpu = _fields(Path("/proc/cpuinfo"))
    memory = _fields(Path("/proc/meminfo"))
    flags = cpu.get("flags", "").split()
    return SystemInfo(
        cpu=cpu.get("model name", platform.machine()),
        cores=len(os.sched_getaffinity(0)),
        cpu_flags=tuple(flag for flag in _CPU_FLAGS if flag in flags),
        memory_gib=_limit_gib(_gib(memory.get("MemTotal", "0 kB"))),
        memory_free_gib=_gib(memory.get("MemAvailable", "0 kB")),
        gpus=tuple(
            _fields(file).get("Model", "unknown")
            for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ),
        libraries={name: _version(name) for name in _LIBRARIES},
    )


def _fields(file: Path) -> dict[str, str]:
    """`name : value` lines; of a name that comes again, the first. Empty where there is no such file."""
    found: dict[str, str] = {}
    if file.is_file():
        for line in file.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    return found


def _gib(value: str) -> float:
    return int(value.split()[0]) * 1024 / _GIB


def _limit_gib(total_gib: float) -> float:
    """Return what a container's limit leaves of the machine's memory."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return total_gib if text == "max" else min(total_gib, int(text) / _GIB)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
