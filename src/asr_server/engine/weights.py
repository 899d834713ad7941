"""Weights in the files of safetensors, mapped: an array's memory is read from disk when it is first used.

A file is the length of its header, 8 bytes, the header in JSON, and the numbers. The library's own reader has no numpy
arrays of bfloat16, and copies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = 8
# The longest header that is read: that of a released checkpoint has 0.1 MB.
_LONGEST_HEADER = 100_000_000
_FORMATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8}

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """An array of a file."""

    numbers: NDArray[Any]  # of bfloat16 the bits, as uint16
    format: str  # as the file names it: F32, F16, BF16 or I8

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of all axes."""
        return self.numbers.shape

    def floats(self, begin: int = 0, end: int | None = None) -> Floats:
        """Return rows of it in float32."""
        rows = self.numbers[begin:end]
        if self.format == "BF16":
            return (rows.astype(np.uint32) << 16).view(np.float32)
        return rows.astype(np.float32)

    def rows(self, ids: NDArray[np.int64]) -> Floats:
        """Return the rows of these numbers in float32."""
        return Weight(self.numbers[ids], self.format).floats()


class StoredWeights(Mapping[str, Weight]):
    """The weights of all files in a directory, by their names after `renamed`: regular expressions and what stands for
    what they match."""

    def __init__(self, directory: Path, renamed: Mapping[str, str] | None = None) -> None:
        """Raises `OSError`, or `ValueError` where a file is damaged."""
        self._found: dict[str, Weight] = {}
        for file in sorted(directory.glob("*.safetensors")):
            for name, weight in _mapped(file):
                for pattern, replacement in (renamed or {}).items():
                    name = re.sub(pattern, replacement, name)
                self._found[name] = weight

    def __getitem__(self, name: str) -> Weight:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _mapped(file: Path) -> Iterator[tuple[str, Weight]]:
    size = file.stat().st_size
    with file.open("rb") as source:
        length = int.from_bytes(source.read(_LENGTH), "little")
        if not 0 < length <= min(_LONGEST_HEADER, size - _LENGTH):
            raise ValueError(f"{file.name} is damaged")
        header = json.loads(source.read(length))
    begins = _LENGTH + length
    # Private: libraries ask for memory that may be written, and nobody writes.
    numbers = np.memmap(file, np.uint8, "c", begins) if size > begins else np.zeros(0, np.uint8)
    for name, about in header.items():
        if name == "__metadata__":
            continue
        kind, (begin, end) = _FORMATS.get(about["dtype"]), about["data_offsets"]
        if kind is None:
            continue  # nothing that a model here computes with
        count = int(np.prod(about["shape"], dtype=np.int64))
        if not 0 <= begin <= end <= len(numbers) or end - begin != count * np.dtype(kind).itemsize:
            raise ValueError(f"{file.name} is damaged")
        # A plain array over the same memory, which it keeps mapped.
        array = np.frombuffer(numbers, kind, count, begin).reshape(about["shape"])
        yield name, Weight(array, about["dtype"])
