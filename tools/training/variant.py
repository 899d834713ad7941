"""A checkpoint that hears almost alike: the weights of another one with some noise. For tests of pairs of models."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def perturbed(source: Path, target: Path, share: float, seed: int = 0) -> Path:
    """Write to `target` the checkpoint in `source`, each weight moved by `share` of its tensor's deviation, on average.

    One part in a hundred leaves nearly all answers of the demonstration model as they are. Returns `target`.
    """
    shutil.copytree(source, target)
    generator = torch.Generator().manual_seed(seed)
    for file in sorted(target.glob("*.safetensors")):
        weights = load_file(file)
        for name, weight in weights.items():
            if weight.is_floating_point() and weight.numel() > 1:
                noise = torch.randn(weight.shape, generator=generator) * weight.float().std() * share
                weights[name] = (weight.float() + noise).to(weight.dtype)
        save_file(weights, file, metadata={"format": "pt"})
    return target
