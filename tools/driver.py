"""Tells before the download if this machine's NVIDIA driver is too old for torch: `python -m tools.driver`."""

from __future__ import annotations

import sys
from dataclasses import replace

from asr_server.engine import gpu

# The CUDA version of PyPI's build of the torch in pyproject.toml.
CUDA = (13, 0)


def problem(gpus: gpu.Gpus) -> str:
    """Return why this driver cannot run that build, and the ways out; "" if it can or is not known."""
    reason = replace(gpus, build=gpu.Build.CUDA, cuda=CUDA).too_old if gpus.driver == gpu.Driver.NVIDIA else ""
    if not reason:
        return ""
    return (
        f"{reason[0].upper()}{reason[1:]}. Nothing was downloaded. Update the driver, or give the address of PyTorch's "
        "index for an older CUDA, which its installation page lists: make serve TORCH_INDEX=URL"
    ).replace("the installed torch, which was", "the build of torch that is to be installed, which was")


if __name__ == "__main__":
    sys.exit(problem(gpu.probe()) or None)
