"""Messages between the server and the process of eSpeak NG.

A request is its length and a JSON object; one at a time. Its answer is frames of `SAMPLES_HEADER`, the number of bytes,
and samples of 16 bits at `RATE`, and at last a frame of 0 bytes with one byte: how it ended.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

RATE = 22_050  # Hz, of all voices of the library
REQUEST_HEADER = struct.Struct("<I")
SAMPLES_HEADER = struct.Struct("<I")
MAX_REQUEST_BYTES = 64 * 1024
MAX_FRAME_BYTES = 64 * 1024
OUTCOME = struct.Struct("<B")
SPOKEN, FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class SpeakRequest:
    """`voice`: the library's name, a language and a variant."""

    text: str
    voice: str

    def to_bytes(self) -> bytes:
        body = json.dumps(asdict(self)).encode()
        return REQUEST_HEADER.pack(len(body)) + body

    @classmethod
    def from_bytes(cls, body: bytes) -> SpeakRequest:
        """Raises ValueError, TypeError or KeyError on anything but what `to_bytes` gives."""
        fields = json.loads(body)
        return cls(str(fields["text"]), str(fields["voice"]))
