"""The protocol between server and decoding child: one request in, messages with samples and one outcome back; limits.

A request is a `DecodeRequest` as a JSON object, sent with the file and the write end of a pipe through the fork server
(`processes/fork_server.py`). The reply on that pipe is messages of `processes/messages.py`, whose content is a
`DecodeNote` and whose data are samples: float32 at the request's rate, interleaved if there are several channels
(`kept_channels`). The first message has `started`, and only the last has an `outcome`: if the pipe ends without one,
the child died.

The limits of a file follow from its size; the memory of all files has a limit too. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from asr_server.core.audio import SAMPLE_RATE

_MIB = 1024 * 1024
# Memory that a child needs for any file: a second of audio in several forms. The memory per byte of a file is for what
# libav keeps of its container: tags, pictures, and an index, which takes up to 24 bytes for a packet of 5.
_LEAST_MEMORY_BYTES = 32 * _MIB
_MEMORY_PER_BYTE = 8
# A quarter of the memory is kept for callers without a file in progress: one file of any size fits into it.
_KEPT_SHARE = 4

# CPU time in seconds: for any file, and for each MiB in addition.
_ALL_CPU_S = (60.0, 10.0)
FIRST_CPU_S = (2.0, 0.1)
BLOCK_CPU_S = (5.0, 1.0)


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """A file to decode, and its limits."""

    file_bytes: int
    max_audio_s: float  # of the decoded audio
    memory_bytes: int  # beyond what the child already has
    cpu_s: float  # CPU time in all
    first_cpu_s: float  # CPU time until the first block of audio
    block_cpu_s: float  # CPU time between two blocks
    max_channels: int = 1  # the most that are kept separate
    rate_hz: int = SAMPLE_RATE  # of the decoded samples


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The limits of all files."""

    max_audio_s: float
    cpu_s: float = 600.0  # at most, for a file of any size
    memory_bytes: int = 1024 * _MIB  # for all children together

    @property
    def shared_memory_bytes(self) -> int:  # that callers with a file in progress may fill
        return self.memory_bytes - self._largest_bytes

    def of_file(self, file_bytes: int, max_channels: int = 1, rate_hz: int = SAMPLE_RATE) -> DecodeRequest:
        """Return the request for a file, with limits by its size: a small file cannot cause a large or slow child."""

        def cpu_s(parts: tuple[float, float]) -> float:
            return min(self.cpu_s, parts[0] + parts[1] * file_bytes / _MIB)

        memory_bytes = min(self._largest_bytes, _LEAST_MEMORY_BYTES + _MEMORY_PER_BYTE * file_bytes)
        cpu_times_s = cpu_s(_ALL_CPU_S), cpu_s(FIRST_CPU_S), cpu_s(BLOCK_CPU_S)
        return DecodeRequest(file_bytes, self.max_audio_s, memory_bytes, *cpu_times_s, max_channels, rate_hz)

    @property
    def _largest_bytes(self) -> int:
        return self.memory_bytes // _KEPT_SHARE


MAX_PCM_BYTES = 128_000  # 2 s of mono: the most memory of the server that one unread message may take
MIN_DURATION_S = 0.1  # less than any word
MAX_CHANNELS = 8  # that are kept separate: a file with more is mixed


class Outcome(StrEnum):
    """The ways in which a decode ends. All but the first are codes of errors."""

    END = "end"
    INVALID_AUDIO = "invalid_audio"
    NO_AUDIO_TRACK = "no_audio_track"
    AUDIO_TOO_SHORT = "audio_too_short"
    AUDIO_TOO_LONG = "audio_too_long"


@dataclass(frozen=True, slots=True)
class DecodeNote:
    """A message of the child without its samples."""

    started: bool = False  # the child is about to read the file
    claim_s: float = 0.0  # seconds that the file's headers claim
    channels: int = 0  # that the file has; before the first samples, only if the request allows more than one
    # Container and codec, if one of them is not supported, and the number of the track that is decoded instead, or 0.
    source: tuple[str, str, int] = ("", "", 0)
    lost_s: tuple[float, float] = (0.0, 0.0)  # begin and end of the next samples, if they stand for damaged packets
    outcome: Outcome | None = None


class DecodeError(Exception):
    """Raised in the child when the file cannot be decoded; the server reads its attributes from the pipe."""

    def __init__(self, outcome: Outcome, container: str = "", codec: str = "") -> None:
        super().__init__(outcome)
        self.outcome, self.container, self.codec = outcome, container, codec


def kept_channels(found: int, most: int) -> int:
    return found if found <= most else 1
