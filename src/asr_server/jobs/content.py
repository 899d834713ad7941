"""The content of a result, which may be larger than the memory: read piece by piece, from wherever it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from io import SEEK_END
from typing import BinaryIO, Protocol

_PIECE_BYTES = 256 * 1024


class Content(Protocol):
    """What a finished job has made."""

    @property
    def size_bytes(self) -> int:
        """All of it."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """From the beginning to the end, once. Raises when the rest cannot be read."""

    def close(self) -> None:
        """It will not be read any more."""


class FileContent:
    """The content of an open file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = file.seek(0, SEEK_END)
        file.seek(0)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the file."""
        while piece := await asyncio.to_thread(self._file.read, _PIECE_BYTES):
            yield piece

    def close(self) -> None:
        """Close the file."""
        self._file.close()
