"""Short WAV files of mono 16-bit PCM at 16 kHz, which need no decoder: what many clients send.

Their samples lie in the file as they are. No library reads these bytes, every loop is bounded, and what is in any way
unusual is left to the decoder's child process: another format, a chunk that is not known here, a size that is wrong.
"""

from __future__ import annotations

import os
import struct
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE

MAX_BYTES = 1024 * 1024  # 32 s: what is read at once
_MAX_CHUNKS = 8
_FORMAT = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)  # PCM, mono, 16 bits
_FORMATS = (_FORMAT, _FORMAT + bytes(2))  # the size of an extension may follow, which PCM has not
_IGNORED = (b"LIST", b"JUNK", b"fact")  # texts, padding, and a number of samples that the data chunk tells better


class Readable(Protocol):
    """A file as `BinaryIO`, temporary files and uploads have it."""

    def read(self, size: int, /) -> bytes: ...

    def seek(self, offset: int, whence: int = ..., /) -> int: ...

    def tell(self) -> int: ...


def read(source: Readable) -> NDArray[np.int16] | None:
    """Return the samples of a whole file, whose position stays as it was: int16 (n,).

    None for a file that the decoder has to read. Raises OSError.
    """
    before = source.tell()
    try:
        if source.seek(0, os.SEEK_END) > MAX_BYTES:
            return None
        source.seek(0)
        return samples(source.read(MAX_BYTES))
    finally:
        source.seek(before)


def samples(content: bytes) -> NDArray[np.int16] | None:
    """Return the samples of the bytes of a file; None if the decoder has to read it."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    at, is_plain = 12, False
    for _ in range(_MAX_CHUNKS):
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        at, end = at + 8, at + 8 + size
        if name == b"data":
            # Behind the end of the samples there may be other chunks, but no more samples.
            is_whole = is_plain and size % 2 == 0 and end <= len(content) and b"data" not in content[end:]
            return np.frombuffer(content, "<i2", size // 2, at) if is_whole else None
        if name == b"fmt " and not is_plain and content[at:end] in _FORMATS:
            is_plain = True
        elif name not in _IGNORED:
            return None
        at = end + size % 2
    return None
