"""Matrices in 8 or 4 bits, kept on disk: the next load maps them instead of converting again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from loguru import logger
from numpy.typing import NDArray
from openvino import opset13 as ops
from safetensors import SafetensorError
from safetensors.numpy import save_file

from asr_server.engine.weights import Floats, StoredWeights, Weight

# The folder in STATE_DIR, with one folder for each checkpoint.
FOLDER = "converted-weights"
# Increase it whenever the conversion makes other numbers of the same weights.
_VERSION = 3
_LARGEST = 127
# Inputs of a 4-bit matrix that share a scale, and the values to which a group's largest weight may be scaled.
GROUP = 64
_LARGEST_HALVES = (7.0, 7.5, 8.0, 8.75)
# Outputs that are in float32 at a time: a whole vocabulary takes hundreds of megabytes.
OUTPUTS = 8192
_PIECE = 1 << 24
# Another process may still be writing a folder without a description. After this long it is abandoned.
_ABANDONED_S = 3600.0
_ABOUT, _WEIGHTS = "about.json", "weights.safetensors"

# A matrix: integers (out, in) with the scale of each output, (out, 1); or pairs of 4-bit integers in bytes, uint8
# (out, in / 2), the first in the lower half, with the scale of each group of inputs, (out, in / 64).
Integers = tuple[NDArray[np.int8] | NDArray[np.uint8], NDArray[np.float32]]
# Matrices by their names, and facts about them that JSON can hold.
Made = tuple[dict[str, Integers], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Matrices of a checkpoint, mapped from disk if they are kept there."""

    matrices: dict[str, Integers]  # by their names
    facts: dict[str, Any]
    release: Callable[[], None] = lambda: None  # gives memory back into which the file was read; see `StoredWeights`


def converted(weights: Sequence[Weight], convert: Callable[[Floats], Integers]) -> Integers:
    """Return weights (out, in), concatenated, as one matrix. `convert`: `integers` or `halves`."""
    parts = [
        convert(weight.floats(begin, begin + OUTPUTS))
        for weight in weights
        for begin in range(0, weight.shape[0], OUTPUTS)
    ]
    whole, scales = zip(*parts, strict=True)
    return np.concatenate(whole), np.concatenate(scales)


def integers(exact: Floats) -> Integers:
    """Return some outputs of a matrix in 8 bits. Overwrites `exact`."""
    largest = np.maximum(np.abs(exact).max(1, keepdims=True), np.finfo(np.float32).tiny * _LARGEST)
    scale = largest / np.float32(_LARGEST)
    exact /= scale
    return np.rint(exact, out=exact).astype(np.int8), scale


def halves(exact: Floats) -> Integers:
    """Return some outputs of a matrix in 4 bits. The number of its inputs is a multiple of 64.

    For each group, the scale with the least squared error of several is taken. It may clip the group's largest weight.
    """
    exact = exact.reshape(len(exact), -1, GROUP)
    widest = np.maximum(np.abs(exact).max(2, keepdims=True), np.finfo(np.float32).tiny * _LARGEST)
    best, scale, least = np.zeros_like(exact), widest, np.full_like(widest, np.inf)
    for largest in _LARGEST_HALVES:
        tried = widest / np.float32(largest)
        rounded = np.clip(np.rint(exact / tried), -8, 7)
        error = ((rounded * tried - exact) ** 2).sum(2, keepdims=True)
        better = error < least
        best, scale = np.where(better, rounded, best), np.where(better, tried, scale)
        least = np.minimum(least, error)
    pairs = best.astype(np.int8).view(np.uint8).reshape(len(exact), -1, 2) & 15
    return pairs[..., 0] | (pairs[..., 1] << 4), scale[..., 0]


def node(matrix: Integers) -> ov.Node:
    """Return a matrix as a node of a graph. The matrix's arrays must outlive the graph."""
    whole, scale = matrix
    if whole.dtype == np.int8:
        return ops.multiply(ops.convert(ops.constant(whole, shared_memory=True), "f32"), ops.constant(scale))
    outputs, groups = scale.shape
    tensor = ov.Tensor(whole, [outputs, groups, GROUP], ov.Type.i4)
    numbers = ops.convert(ov.op.Constant(tensor, shared_memory=True), "f32")
    scaled = ops.multiply(numbers, ops.constant(scale[..., None]))
    return ops.reshape(scaled, ops.constant(np.array([outputs, groups * GROUP])), False)


def key(checkpoint: Path, bits: int = 8) -> str:
    """Return the folder name for the matrices of a checkpoint as it is now; `bits`: of most of its matrices.

    Weights are told apart by the name, size and time of their files. Links are followed: the hub's cache names files by
    their content.
    """
    files = [(file.name, file.resolve()) for file in sorted(checkpoint.glob("*.safetensors"))]
    known = [(name, str(real), real.stat().st_size, real.stat().st_mtime_ns) for name, real in files]
    return hashlib.sha256(json.dumps([_VERSION, bits, known]).encode()).hexdigest()[:32]


def kept(state_dir: Path | None, checkpoint: Path, make: Callable[[], Made], bits: int = 8) -> Kept:
    """Return the matrices of a checkpoint, mapped from disk. If they are missing or damaged, make them, and let them
    replace the matrices of its earlier weights on disk.

    If the disk cannot be written, log that and use the matrices in memory.
    """
    if state_dir is None:
        return Kept(*make())
    folder, name = state_dir.expanduser() / FOLDER, key(checkpoint, bits)
    if (found := _read(folder / name)) is not None:
        return found
    made = make()
    try:
        _write(folder / name, str(checkpoint), bits, *made)
    except (OSError, SafetensorError) as error:
        logger.warning("Converted weights are not kept: the next load makes them again.", reason=str(error))
        return Kept(*made)
    return _read(folder / name) or Kept(*made)


def _read(folder: Path) -> Kept | None:
    """Return the matrices of a folder; None if they are missing, damaged or cannot be read."""
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if about["checksum"] != _checksum(folder / _WEIGHTS):
            logger.warning("Converted weights on disk are damaged and are made again.", folder=str(folder))
            return None
        stored = StoredWeights(folder)
        found = {name: (stored[name].numbers, stored[f"{name}.scale"].numbers) for name in about["names"]}
        return Kept(found, about["facts"], stored.release)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("Converted weights on disk cannot be read and are made again.", reason=str(error))
        return None


def _write(place: Path, checkpoint: str, bits: int, matrices: dict[str, Integers], facts: dict[str, Any]) -> None:
    """Write matrices to a temporary folder, and rename it when it is complete: nobody sees a part of them."""
    folder = place.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for other in folder.iterdir():
        if _is_outdated(other, checkpoint, bits):
            shutil.rmtree(other, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(dir=folder, prefix="."))
    try:
        scales = {f"{one}.scale": scale for one, (_, scale) in matrices.items()}
        save_file({**{one: whole for one, (whole, _) in matrices.items()}, **scales}, fresh / _WEIGHTS)
        about = {"names": list(matrices), "checksum": _checksum(fresh / _WEIGHTS), "facts": facts}
        about |= {"checkpoint": checkpoint, "bits": bits}
        (fresh / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        for file in (fresh / _WEIGHTS, fresh / _ABOUT, folder):
            _synchronise(file)
        shutil.rmtree(place, ignore_errors=True)
        fresh.rename(place)
        _synchronise(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_outdated(other: Path, checkpoint: str, bits: int) -> bool:
    """Return True if a folder has the checkpoint's earlier weights, is damaged, or was left behind by a crash."""
    try:
        about = json.loads((other / _ABOUT).read_text(encoding="utf-8"))
        return bool((about["checkpoint"], about["bits"]) == (checkpoint, bits))
    except (OSError, ValueError, KeyError, TypeError):
        return time.time() - other.stat().st_mtime > _ABANDONED_S


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
