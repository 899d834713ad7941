"""The GPU and the installed torch, by files and package metadata, without importing torch."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

# The oldest driver for each major version of CUDA, for all its minor ones:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MINIMUM_DRIVER = {11: (450,), 12: (525,), 13: (580,)}
# Compute capability by a card's name, from https://developer.nvidia.com/cuda-gpus and cuda-legacy-gpus; the first match
# counts. Other cards are queried when the model is loaded.
_CAPABILITIES = (
    (r"\bQuadro RTX \d000\b", (7, 5)),
    (r"\bRTX \d000 (SFF )?Ada\b", (8, 9)),
    (r"\b(RTX 50\d\d|RTX PRO \d\d00)\b", (12, 0)),
    (r"\b(B300|GB300)\b", (10, 3)),
    (r"\b(B200|GB200)\b", (10, 0)),
    (r"\b(H100|H200|GH200|H800|H20)\b", (9, 0)),
    (r"\b(L4|L40S?|RTX 40\d\d)\b", (8, 9)),
    (r"\b(A10|A10G|A2|A16|A40|RTX A\d000|RTX 30\d\d)\b", (8, 6)),
    (r"\b(A100|A30|A800)\b", (8, 0)),
    (r"\b(T4|RTX 20\d\d|TITAN RTX|GTX 16\d\d)\b", (7, 5)),
    (r"\b(V100|TITAN V|GV100)\b", (7, 0)),
    (r"\b(P40|P4|GTX 10\d\d)\b", (6, 1)),
    (r"\bP100\b", (6, 0)),
)
# How long NVIDIA's program may take; it loads the driver first.
_SMI_S = 10.0
BFLOAT16_FROM, FLOAT16_FROM = (8, 0), (7, 0)
# Known for NaN in half precision.
_FAULTY_FLOAT16 = re.compile(r"\bGTX 16\d\d\b")
# The first compute capability with units for 8-bit integers and for 8-bit floating point.
_EIGHT_BITS_FROM = {"int8": (7, 5), "fp8": (8, 9)}
_BFLOAT16_REASON = "the format of the released weights, for which the GPU has units"


class Driver(StrEnum):
    """The maker of the driver that is installed."""

    NONE = ""
    NVIDIA = "NVIDIA"
    WSL = "NVIDIA (WSL2)"  # Windows has the driver; /proc/driver/nvidia is not there
    AMD = "AMD"


class Build(StrEnum):
    """The kind of device that the installed torch was built for."""

    CPU = "CPU"
    CUDA = "CUDA"
    ROCM = "ROCm"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The driver, the cards and the build of torch."""

    driver: Driver = Driver.NONE
    driver_version: tuple[int, ...] = ()  # (major, minor, ...), () if no file has it
    cards: tuple[str, ...] = ()  # their names
    memory_mb: tuple[int, ...] = ()  # of the cards, () if it is not known
    build: Build = Build.CPU  # of the installed torch
    cuda: tuple[int, ...] = ()  # the version that torch was built for: (major, minor, ...), () if no file has it
    compatible: bool = False  # a package with newer libraries of the driver is installed (cuda-compat)

    @property
    def build_fits(self) -> bool:
        """True if torch was built for the GPU of the driver; without a driver, for any GPU."""
        kinds = {Driver.NVIDIA: Build.CUDA, Driver.WSL: Build.CUDA, Driver.AMD: Build.ROCM}
        return self.build is kinds.get(self.driver, self.build) and self.build is not Build.CPU

    @property
    def too_old(self) -> str:
        """Return why the driver cannot run this build; "" if it can or if its version is not known."""
        least = MINIMUM_DRIVER.get(self.cuda[0], ()) if self.cuda else ()
        if self.build is not Build.CUDA or self.compatible or not self.driver_version or self.driver_version >= least:
            return ""
        return (
            f"the NVIDIA driver {_dotted(self.driver_version)} is too old for the installed torch, which was built for "
            f"CUDA {_dotted(self.cuda)} and needs {_dotted(least)} or newer"
        )

    @property
    def capability(self) -> tuple[int, int] | None:
        """Return the compute capability of the cards by their names; None if they are not all known and equal."""
        found = {
            next((capability for pattern, capability in _CAPABILITIES if re.search(pattern, name)), None)
            for name in self.cards
        }
        return found.pop() if len(found) == 1 else None


NO_GPU = Gpus()


def probe(root: Path = Path("/"), smi: str = "nvidia-smi") -> Gpus:
    """Look at the files below `root` and at the installed torch, and run NVIDIA's program `smi` if its driver is
    there."""
    build, cuda = _build()
    driver = _driver(root)
    version = root / "proc/driver/nvidia/version"
    models = (root / "proc/driver/nvidia/gpus").glob("*/information")
    return Gpus(
        driver=driver,
        driver_version=_version(version.read_text()) if version.is_file() else (),
        cards=tuple(_model(file) for file in sorted(models)),
        memory_mb=_memory_mb(smi) if driver in (Driver.NVIDIA, Driver.WSL) else (),
        build=build,
        cuda=cuda,
        compatible=any(root.glob("usr/local/cuda*/compat/libcuda.so.*")),
    )


def dtype(capability: tuple[int, int] | None, cards: Iterable[str] = (), *, rocm: bool = False) -> tuple[str, str]:
    """Return the number format for `DTYPE=auto` on GPUs of that compute capability and of these names, and the
    reason."""
    if rocm or (capability is not None and capability >= BFLOAT16_FROM):
        return "bfloat16", _BFLOAT16_REASON
    if faulty := [card for card in cards if _FAULTY_FLOAT16.search(card)]:
        return "float32", f"{faulty[0]} is known for NaN in float16"
    if capability is not None and capability >= FLOAT16_FROM:
        return "float16", f"a GPU of compute capability {_dotted(capability)} has units for it, and none for bfloat16"
    known = f"of compute capability {_dotted(capability)}" if capability else "of unknown compute capability"
    return "float32", f"a GPU {known} has no fast units for a shorter format"


def eight_bit_problem(quantize: str, capability: tuple[int, int] | None, name: str) -> str:
    """Return why a GPU cannot multiply in "int8" or "fp8"; "" if it can or if its compute capability is not known."""
    least = _EIGHT_BITS_FROM[quantize]
    if capability is None or capability >= least:
        return ""
    return f"{name or 'the GPU'} has compute capability {_dotted(capability)}, and {quantize} needs {_dotted(least)}"


def _driver(root: Path) -> Driver:
    # A container sees this file of its host even if it was given no GPU. On a host, the device node may be missing:
    # nvidia-modprobe makes it when it is first needed.
    if (root / "proc/driver/nvidia/version").is_file() and any(
        (root / path).exists() for path in ("dev/nvidiactl", "usr/bin/nvidia-modprobe")
    ):
        return Driver.NVIDIA
    # /dev/dxg is there for GPUs of all makers; libcuda.so comes from NVIDIA's driver for Windows.
    libraries = ("usr/lib/wsl/lib/libcuda.so*", "usr/lib/wsl/drivers/*/libcuda.so*", "usr/lib/*-linux-gnu/libcuda.so.1")
    if (root / "dev/dxg").exists() and any(any(root.glob(pattern)) for pattern in libraries):
        return Driver.WSL
    return Driver.AMD if (root / "dev/kfd").exists() else Driver.NONE


def _memory_mb(smi: str) -> tuple[int, ...]:
    command = [smi, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=True)
        return tuple(map(int, done.stdout.split()))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _build() -> tuple[Build, tuple[int, ...]]:
    """Read the build from torch's own file: the metadata's version names it only for some package indexes."""
    try:
        text = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))).read_text()
    except (metadata.PackageNotFoundError, OSError):
        return Build.CPU, ()
    found = dict(re.findall(r"^(cuda|hip)\b.*= '([\d.]+)", text, re.MULTILINE))
    if "hip" in found:
        return Build.ROCM, ()
    return (Build.CUDA, _version(found["cuda"])) if "cuda" in found else (Build.CPU, ())


def _version(text: str) -> tuple[int, ...]:
    found = re.search(r"\b\d+(?:\.\d+)+\b", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _model(file: Path) -> str:
    return next((line.partition(":")[2].strip() for line in file.read_text().splitlines() if "Model:" in line), "")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
