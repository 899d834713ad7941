"""Weights in safetensors files, mapped: an array's memory is read from disk when it is first used.

A file consists of the length of its header (8 bytes), the header in JSON, and the numbers. The library's own reader
copies, and returns no numpy arrays of bfloat16.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = 8
# The longest header that is read. The header of a released checkpoint has 0.1 MB.
_LONGEST_HEADER = 100_000_000
_FORMATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I8": np.int8, "U8": np.uint8}

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """An array of a file."""

    numbers: NDArray[Any]  # bfloat16 as its bits, in uint16
    format: str  # as the file names it: F32, F16, BF16, I8 or U8

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    def floats(self, begin: int = 0, end: int | None = None) -> Floats:
        """Return rows of it in float32."""
        rows = self.numbers[begin:end]
        if self.format == "BF16":
            return (rows.astype(np.uint32) << 16).view(np.float32)
        return rows.astype(np.float32)

    def rows(self, ids: NDArray[np.int64]) -> Floats:
        return Weight(self.numbers[ids], self.format).floats()


class StoredWeights(Mapping[str, Weight]):
    """The weights of all files in a directory, by name. `renamed`: regular expressions for parts of names, with their
    replacements."""

    def __init__(self, directory: Path, renamed: Mapping[str, str] | None = None) -> None:
        """Map the files. Raises `OSError`, or `ValueError` if a file is damaged."""
        self._found: dict[str, Weight] = {}
        self._files = [_File(file) for file in sorted(directory.glob("*.safetensors"))]
        for file in self._files:
            for name, weight in file.weights():
                for pattern, replacement in (renamed or {}).items():
                    name = re.sub(pattern, replacement, name)
                self._found[name] = weight

    def release(self) -> None:
        """Give back the memory into which files were read. Weights that are used again are read again, mostly from the
        system's file cache."""
        for file in self._files:
            file.mapped.madvise(mmap.MADV_DONTNEED)

    def __getitem__(self, name: str) -> Weight:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class _File:
    """A mapped file of weights."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as source:
            size = file.stat().st_size
            length = int.from_bytes(source.read(_LENGTH), "little")
            if not 0 < length <= min(_LONGEST_HEADER, size - _LENGTH):
                raise ValueError(f"{file.name} is damaged")
            self._header = json.loads(source.read(length))
            if not isinstance(self._header, dict):
                raise ValueError(f"{file.name} is damaged")
            # A private mapping, since libraries ask for writable memory. Nobody writes to it.
            self.mapped = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY)
        self._name, self._begins, self._size = file.name, _LENGTH + length, size

    def weights(self) -> Iterator[tuple[str, Weight]]:
        """Yield names and arrays. Raises `ValueError` if they lie outside of the file."""
        for name, about in self._header.items():
            if name == "__metadata__" or about["dtype"] not in _FORMATS:
                continue  # nothing that a model here computes with
            kind, (begin, end) = _FORMATS[about["dtype"]], about["data_offsets"]
            count = int(np.prod(about["shape"], dtype=np.int64))
            room = self._size - self._begins
            if not 0 <= begin <= end <= room or end - begin != count * np.dtype(kind).itemsize:
                raise ValueError(f"{self._name} is damaged")
            array = np.frombuffer(self.mapped, kind, count, self._begins + begin).reshape(about["shape"])
            yield name, Weight(array, about["dtype"])
