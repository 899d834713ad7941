"""Matrices in 8 bits, kept on disk: the next load maps them instead of converting again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

# The folder in STATE_DIR, with one folder for each checkpoint.
FOLDER = "eight-bit-weights"
# Changed whenever other numbers are made of the same weights.
_VERSION = 1
_LARGEST = 127
# Outputs that are in float32 at a time: of a vocabulary there are hundreds of megabytes.
OUTPUTS = 8192
_PIECE = 1 << 24
_ABOUT, _WEIGHTS = "about.json", "weights.safetensors"

# Integers (out, in) of a matrix, and the scale of each output, (out, 1) in float32.
Integers = tuple[torch.Tensor, torch.Tensor]
# Matrices by their names, and facts about them that JSON can hold.
Made = tuple[dict[str, Integers], dict[str, Any]]


def integers(weight: torch.Tensor) -> Integers:
    """Return a matrix (out, in) in 8 bits."""
    parts = []
    for part in weight.split(OUTPUTS):
        exact = part.float()
        scale = exact.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny * _LARGEST) / _LARGEST
        parts.append(((exact / scale).round_().to(torch.int8), scale))
    whole, scales = zip(*parts, strict=True)
    return torch.cat(whole), torch.cat(scales)


def key(checkpoint: Path) -> str:
    """Return the name of what is made of a checkpoint.

    Weights are told apart by name, size and time of their files, or of what these are links to: files of the hub's
    cache are named by their content.
    """
    files = [(file.name, file.resolve()) for file in sorted(checkpoint.glob("*.safetensors"))]
    known = [(name, str(real), real.stat().st_size, real.stat().st_mtime_ns) for name, real in files]
    return hashlib.sha256(json.dumps([_VERSION, known]).encode()).hexdigest()[:32]


def kept(state_dir: Path | None, name: str, make: Callable[[], Made]) -> Made:
    """Return the matrices `name` from disk, mapped; where they are missing or damaged they are made, and written.

    A disk that cannot be written is told in the log, and the matrices are those in memory.
    """
    if state_dir is None:
        return make()
    folder = state_dir.expanduser() / FOLDER
    if (found := _read(folder / name)) is not None:
        return found
    made = make()
    try:
        _write(folder, name, *made)
    except (OSError, SafetensorError) as error:
        logger.warning("Weights in 8 bits are not kept: the next load makes them again.", reason=str(error))
        return made
    return _read(folder / name) or made


def _read(folder: Path) -> Made | None:
    """Return matrices whose file has its checksum, None for any other."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if about["checksum"] != _checksum(folder / _WEIGHTS):
            logger.warning("Weights in 8 bits on disk are damaged and are made again.", folder=str(folder))
            return None
        with safe_open(folder / _WEIGHTS, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return {name: (tensors[name], tensors[f"{name}.scale"]) for name in about["names"]}, about["facts"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        logger.warning("Weights in 8 bits on disk cannot be read and are made again.", reason=str(error))
        return None


def _write(folder: Path, name: str, matrices: dict[str, Integers], facts: dict[str, Any]) -> None:
    """Write matrices beside their place, and move them there: nobody sees a part of them."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = Path(tempfile.mkdtemp(dir=folder, prefix="."))
    try:
        scales = {f"{one}.scale": scale for one, (_, scale) in matrices.items()}
        save_file({**{one: whole for one, (whole, _) in matrices.items()}, **scales}, fresh / _WEIGHTS)
        about = {"names": list(matrices), "checksum": _checksum(fresh / _WEIGHTS), "facts": facts}
        (fresh / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        for file in (fresh / _WEIGHTS, fresh / _ABOUT, folder):
            _synchronise(file)
        shutil.rmtree(folder / name, ignore_errors=True)
        fresh.rename(folder / name)
        _synchronise(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _synchronise(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(file: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with file.open("rb") as source:
        while piece := source.read(_PIECE):
            found = zlib.crc32(piece, found)
    return found
