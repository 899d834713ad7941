"""The protocol between server and decoding child: one request in, frames of PCM and one outcome back. No I/O.

A request is a `DecodeRequest` as a JSON object, sent with the file and the write end of a pipe through the fork server
(`processes/fork_server.py`). The reply on that pipe is frames of `HEADER` (type, payload bytes, both uint32) and
payload: `STARTED`, before the child reads the file; at most one `CLAIM`, the seconds that the file's headers claim, as
float32; before the first `PCM`, and only if the request allows more than one channel, `CHANNELS`, the number of the
file's channels, as uint32; any number of `PCM` frames of float32 at the request's rate, interleaved if there are
several channels (`kept_channels`); then exactly one other type, without payload. A pipe that ends without one means
that the child died.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from asr_server.core.audio import SAMPLE_RATE

HEADER = struct.Struct("<II")
MAX_PCM_BYTES = 128_000  # a frame is 2 s of mono at most: what one unread block may take of the server's memory
CLAIM = struct.Struct("<f")
CHANNELS = struct.Struct("<I")
MIN_DURATION_S = 0.1  # less than any word


class FrameType(IntEnum):
    """The kinds of frames. All but `PCM`, `CLAIM`, `CHANNELS` and `STARTED` are outcomes and end the reply."""

    PCM = 0
    END = 1
    INVALID_AUDIO = 2
    NO_AUDIO_TRACK = 3
    AUDIO_TOO_SHORT = 4
    AUDIO_TOO_LONG = 5
    CLAIM = 6
    STARTED = 7
    CHANNELS = 8


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
    """Raised in the child when the file cannot be decoded; the server reads `outcome` from the pipe."""

    def __init__(self, outcome: FrameType) -> None:
        super().__init__(outcome.name)
        self.outcome = outcome
