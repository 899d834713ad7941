"""The result of a job while it is made in parts: the samples of finished ones, and a list of these, in two files.

Both files only grow. A part counts once its line is in the list, which is written after its samples; the rest that a
server left when it died is cut off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

SAMPLE_BYTES = 2
_LINE = re.compile(rb"([0-9a-f]{64}) (\d{1,12})\n")
_BLOCK_BYTES = 480_000


@dataclass(frozen=True, slots=True)
class JobPart:
    """A finished part of a result."""

    key: str  # a digest of all that its samples depend on
    samples: int  # how many, of 16 bits, mono


class JobParts:
    """Both files, open for appending and reading. One user at a time; every method may wait for the disk and raise
    `OSError`."""

    def __init__(self, audio: BinaryIO, listed: BinaryIO) -> None:
        self._audio, self._list = audio, listed
        self.finished = self._read()
        self.cut(len(self.finished))

    def __enter__(self) -> JobParts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._audio.close()
        self._list.close()

    @property
    def samples(self) -> int:
        """The number of samples of all finished parts."""
        return sum(part.samples for part in self.finished)

    def cut(self, count: int) -> None:
        """Forget all but the first `count` parts."""
        del self.finished[count:]
        self._list.truncate(sum(len(_line(part)) for part in self.finished))
        self._audio.truncate(self.samples * SAMPLE_BYTES)

    def write(self, data: bytes) -> None:
        """Add the next bytes of the part that is being made."""
        self._audio.write(data)

    def finish_part(self, key: str) -> None:
        """End the part. When this returns, the part is on the disk."""
        self._audio.flush()
        os.fsync(self._audio.fileno())
        size = os.fstat(self._audio.fileno()).st_size
        part = JobPart(key, size // SAMPLE_BYTES - self.samples)
        self._list.write(_line(part))
        self._list.flush()
        os.fsync(self._list.fileno())
        self.finished.append(part)

    def samples_of(self, number: int) -> bytes:
        """Return the samples of a finished part."""
        begin = sum(part.samples for part in self.finished[:number]) * SAMPLE_BYTES
        return os.pread(self._audio.fileno(), self.finished[number].samples * SAMPLE_BYTES, begin)

    def blocks(self, part: JobPart) -> Iterator[bytes]:
        """The samples of the next part, from the beginning of the file on, a few seconds at a time."""
        left = part.samples * SAMPLE_BYTES
        while left:
            data = self._audio.read(min(left, _BLOCK_BYTES))
            if not data:
                raise OSError("the samples of a part are missing")
            left -= len(data)
            yield data

    def rewind(self) -> None:
        """Read from the beginning."""
        self._audio.seek(0)

    def _read(self) -> list[JobPart]:
        self._list.seek(0)
        found: list[JobPart] = []
        kept = os.fstat(self._audio.fileno()).st_size
        for line in self._list:
            matched = _LINE.fullmatch(line)
            if matched is None:
                break
            part = JobPart(matched[1].decode(), int(matched[2]))
            kept -= part.samples * SAMPLE_BYTES
            if kept < 0:
                break
            found.append(part)
        return found


def _line(part: JobPart) -> bytes:
    return f"{part.key} {part.samples}\n".encode()
