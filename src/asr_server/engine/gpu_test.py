"""The GPU of a machine by files and metadata, and the plan that follows: one row for each kind of machine."""

from collections import namedtuple
from types import SimpleNamespace

import pytest

from asr_server.core import settings
from asr_server.engine import gpu, plan
from asr_server.engine.capabilities import Capabilities
from asr_server.engine.gpu import Build, Driver

NEW, OLD = "580.65.06", "535.54.03"
CUDA_13, CUDA_12, ROCM, CPU = "cuda = '13.0'\nhip = None", "cuda = '12.6'\nhip = None", "hip = '6.4.2'", "cuda = None"


# `driver`: the version in NVIDIA's file. `torch`: what torch's version file says, "" without torch.
Machine = namedtuple("Machine", "torch driver cards files", defaults=("", (), ()))


def _nvidia(driver, *cards, torch=CUDA_13, files=("dev/nvidiactl",)):
    return Machine(torch, driver, cards, files)


@pytest.fixture
def probe(tmp_path, monkeypatch):

    def probe(machine):
        if machine.driver:
            text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {machine.driver}  Tue Jun  6 22:20:39 UTC 2023\n"
            _write(tmp_path / "proc/driver/nvidia/version", text + "GCC version:  gcc version 12.3.0\n")
        for number, name in enumerate(machine.cards):
            card = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}:00.0/information"
            _write(card, f"Model: \t\t {name}\nIRQ: 1\n")
        for file in machine.files:
            _write(tmp_path / file, "")
        lines = [f"{line.replace(' =', ': Optional[str] =')}" for line in machine.torch.splitlines()]
        _write(tmp_path / "site/torch/version.py", "\n".join(["__version__ = '2.13.0'", "debug = False", *lines]))

        def distribution(name):
            if not machine.torch:
                raise gpu.metadata.PackageNotFoundError
            return SimpleNamespace(locate_file=lambda path: tmp_path / "site" / path)

        monkeypatch.setattr(gpu.metadata, "distribution", distribution)
        gpus = gpu.probe(tmp_path, str(tmp_path / "nvidia-smi"))
        monkeypatch.undo()
        return gpus

    return probe


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _resolve(gpus, **values):
    facts = Capabilities(gpu=gpus.driver is not Driver.NONE, torch_cuda=gpus.build_fits, gpus=gpus)
    return plan.resolve(settings.load(_env_file=None, model_id="demo", **values), facts)


@pytest.mark.parametrize(
    ("machine", "device", "dtype"),
    [
        (_nvidia(NEW, "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"), "cuda", "bfloat16"),
        (_nvidia(NEW, "Tesla T4"), "cuda", "float16"),
        (_nvidia(NEW, "Quadro RTX 5000 with Max-Q Design"), "cuda", "float16"),
        (_nvidia(NEW, "NVIDIA RTX 5000 Ada Generation"), "cuda", "bfloat16"),
        (_nvidia(NEW, "NVIDIA GeForce GTX 1650 SUPER"), "cuda", "float32"),
        (_nvidia(OLD, "Tesla P100-PCIE-16GB", torch=CUDA_12), "cuda", "float32"),
        # Newer libraries of a driver that is too old are tried.
        (_nvidia(OLD, files=("dev/nvidiactl", "usr/local/cuda-13.0/compat/libcuda.so.1")), "cuda", "auto"),
        (_nvidia(NEW, "Some Card of Tomorrow"), "cuda", "auto"),
        (_nvidia(NEW, "Tesla T4", "NVIDIA L4"), "cuda", "auto"),
        (_nvidia(NEW, files=("usr/bin/nvidia-modprobe",)), "cuda", "auto"),
        (Machine(CUDA_12, files=("dev/dxg", "usr/lib/wsl/lib/libcuda.so.1")), "cuda", "auto"),
        (Machine(ROCM, files=("dev/kfd",)), "cuda", "bfloat16"),
        (_nvidia(NEW, "NVIDIA H100 80GB HBM3", torch=ROCM), "cpu", "float32"),
        (Machine(CUDA_13, files=("dev/kfd",)), "cpu", "float32"),
        (Machine(CPU, files=("dev/dxg",)), "cpu", "float32"),
        # A container that was given no GPU, on a machine that has one.
        (_nvidia(NEW, "NVIDIA H100 80GB HBM3", files=()), "cpu", "float32"),
        (Machine(""), "cpu", "float32"),
    ],
)
def test_a_machine_is_judged_by_its_files(probe, machine, device, dtype):
    """The device, and the number format where the card is known by its name."""
    resolved = _resolve(probe(machine))
    assert resolved.device == device
    if device == "cuda":
        assert resolved.dtype == dtype
    for name in ("device", "dtype"):
        (option,) = (option for option in resolved.options if option.name == name)
        assert option.reason


@pytest.mark.parametrize(
    ("script", "memory_mb"),
    [("echo 4096; echo 24564", (4096, 24564)), ("echo '[N/A]'", ()), ("exit 9", ()), ("", ())],
)
def test_the_memory_of_cards_is_asked_of_nvidias_program(probe, tmp_path, script, memory_mb):
    """It is not known if the program fails or is not there."""
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    assert probe(_nvidia(NEW, "NVIDIA L4")).memory_mb == memory_mb


_NEEDED = ("535.54.3", "CUDA 13.0", "580", "Update", "DEVICE=cpu")


@pytest.mark.parametrize(
    ("machine", "device", "words"),
    [
        (_nvidia(OLD, "NVIDIA H100 80GB HBM3"), "auto", _NEEDED),
        (_nvidia(OLD, "NVIDIA H100 80GB HBM3"), "cuda", _NEEDED),
        (Machine(CPU), "cuda", ("no NVIDIA or AMD driver", "CPU build", "DEVICE=cuda", "pip install '.[gpu]'")),
        (_nvidia(NEW, "Tesla T4", torch=ROCM), "cuda", ("ROCm build", "DEVICE=cuda", "pip install '.[gpu]'")),
    ],
)
def test_a_gpu_that_cannot_be_used_stops_the_start_in_words(probe, machine, device, words):
    """The error names what is there, what is needed, and the ways out."""
    gpus = probe(machine)
    with pytest.raises(plan.PlanError) as refusal:
        _resolve(gpus, device=device)
    assert all(word in str(refusal.value) for word in words)
    assert _resolve(gpus, device="cpu").device == "cpu"


@pytest.mark.torch
def test_this_installation_is_read_from_its_own_version_file():
    """The build that the tests run on, by torch's own words."""
    import torch

    found = gpu.probe()
    assert (found.build is Build.CUDA) == (torch.version.cuda is not None)
    assert (found.build is Build.ROCM) == (torch.version.hip is not None)
