"""The limits of decoding: those of one file, which follow from its size, and the memory of all files together."""

from __future__ import annotations

from dataclasses import dataclass

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
