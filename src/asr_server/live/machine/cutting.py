"""Live audio in pieces and whole samples: it comes in frames of any size, which may end inside a sample. Pure."""

from __future__ import annotations

from collections.abc import Iterator

# The slices in which a session processes received audio: 128 ms at 16 kHz.
SLICE_BYTES = 4 * 1024


def pieces(pcm: bytes, size_bytes: int) -> Iterator[bytes]:
    """Yield the bytes in pieces of this size; the last one may be shorter."""
    for at in range(0, len(pcm), size_bytes):
        yield pcm[at : at + size_bytes]


class WholeSamples:
    """Joins pieces of a stream of 16-bit samples, and cuts it between samples."""

    def __init__(self) -> None:
        self._rest = b""  # the beginning of a sample whose end is still to come

    def push(self, pcm: bytes) -> bytes:
        """Return the samples that are complete now."""
        data = self._rest + pcm
        whole = len(data) // 2 * 2
        self._rest = data[whole:]
        return data[:whole]

    def clear(self) -> None:
        """Forget half a sample: the next byte is the first of one."""
        self._rest = b""
