"""The protocol between server and decoding child: one request in, frames of PCM and one outcome back; its limits.

A request is a `DecodeRequest` as a JSON object, sent with the file and the write end of a pipe through the fork server
(`processes/fork_server.py`). The reply on that pipe is frames of `HEADER` (type, payload bytes, both uint32) and
payload:

- `STARTED`, before the child reads the file;
- at most one `CLAIM`, the seconds that the file's headers claim, as float32;
- `SOURCE`, if a container or codec is not read: its names, and the number of the track that is decoded instead, or 0;
- `CHANNELS` before the first `PCM`, only if the request allows more than one: how many the file has, as uint32;
- any number of `PCM`: float32 at the request's rate, interleaved if there are several channels (`kept_channels`);
- `LOST` before `PCM` of silence that stands for damaged packets: its beginning and end in seconds, as float64;
- exactly one other type, without payload. A pipe that ends without one means that the child died.

The limits of a file follow from its size; the memory of all files has a limit too. No I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from asr_server.core.audio import SAMPLE_RATE

_MIB = 1024 * 1024
# Memory that a child needs for any file: a second of audio in several forms. The rest is for what a container has libav
# keep: an index, which takes up to 24 bytes for a packet of 5, tags and pictures.
_LEAST_MEMORY_BYTES = 32 * _MIB
_MEMORY_PER_BYTE = 8
# A quarter of the memory is kept for callers that have no file under way: one file of any size fits into it.
_KEPT_SHARE = 4

# CPU time: a part for any file, and a part for each MiB.
_ALL_CPU_S = (60.0, 10.0)
_FIRST_CPU_S = (2.0, 0.1)
_BLOCK_CPU_S = (5.0, 1.0)
# Other processes use the CPU too, and the disk may be slow.
_WAIT_PER_CPU_S = 4.0


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of one file's child."""

    memory_bytes: int  # beyond what the child begins with
    cpu_s: float  # CPU time in all
    first_cpu_s: float  # CPU time until the first block of audio
    block_cpu_s: float  # CPU time between two blocks

    @property
    def timeout_s(self) -> float:
        return _WAIT_PER_CPU_S * self.cpu_s

    @property
    def first_timeout_s(self) -> float:
        return _WAIT_PER_CPU_S * self.first_cpu_s

    @property
    def block_timeout_s(self) -> float:
        return _WAIT_PER_CPU_S * self.block_cpu_s


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The limits of all files."""

    max_audio_s: float
    cpu_s: float = 600.0  # at most, for a file of any size
    memory_bytes: int = 1024 * _MIB  # for all children together

    @property
    def shared_memory_bytes(self) -> int:
        """Return the bytes that callers which have a file under way already may fill."""
        return self.memory_bytes - self._largest_bytes

    def of_file(self, file_bytes: int) -> FileLimits:
        """Return the limits for a file of that size, so that a small one cannot make a large child or a slow one."""

        def cpu_s(parts: tuple[float, float]) -> float:
            return min(self.cpu_s, parts[0] + parts[1] * file_bytes / _MIB)

        memory_bytes = min(self._largest_bytes, _LEAST_MEMORY_BYTES + _MEMORY_PER_BYTE * file_bytes)
        return FileLimits(memory_bytes, cpu_s(_ALL_CPU_S), cpu_s(_FIRST_CPU_S), cpu_s(_BLOCK_CPU_S))

    @property
    def _largest_bytes(self) -> int:
        return self.memory_bytes // _KEPT_SHARE


HEADER = struct.Struct("<II")
MAX_PCM_BYTES = 128_000  # a frame is 2 s of mono at most: what one unread block may take of the server's memory
CLAIM = struct.Struct("<f")
CHANNELS = struct.Struct("<I")
LOST = struct.Struct("<dd")
SOURCE = struct.Struct("<32s32sI")
MIN_DURATION_S = 0.1  # less than any word
MAX_CHANNELS = 8  # that are kept apart: a file with more is mixed


class FrameType(IntEnum):
    """The kinds of frames. Those from `END` to `AUDIO_TOO_LONG` are outcomes and end the reply."""

    PCM = 0
    END = 1
    INVALID_AUDIO = 2
    NO_AUDIO_TRACK = 3
    AUDIO_TOO_SHORT = 4
    AUDIO_TOO_LONG = 5
    CLAIM = 6
    STARTED = 7
    CHANNELS = 8
    LOST = 9
    SOURCE = 10


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """A file to decode, and its limits."""

    file_bytes: int
    max_audio_s: float  # of the decoded audio
    memory_bytes: int  # beyond what the child already has
    cpu_s: float  # CPU time in all
    first_cpu_s: float  # CPU time until the first block of audio
    block_cpu_s: float  # CPU time between two blocks
    max_channels: int = 1  # the most that are kept apart
    rate_hz: int = SAMPLE_RATE  # of the decoded samples


class DecodeError(Exception):
    """Raised in the child when the file cannot be decoded; the server reads its attributes from the pipe."""

    def __init__(self, outcome: FrameType, container: str = "", codec: str = "") -> None:
        super().__init__(outcome.name)
        self.outcome, self.container, self.codec = outcome, container, codec


def kept_channels(found: int, most: int) -> int:
    """Return how many channels are kept of those of a file: all, or one if there are more than `most`."""
    return found if found <= most else 1
