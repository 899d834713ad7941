"""Messages between the server and the process of eSpeak NG.

A request is its length and a JSON object; one at a time. Its answer is frames of `FRAME_HEADER`, the number of bytes,
and that many bytes, and at last a frame of 0 bytes with one byte: how it ended. The bytes are samples of 16 bits at
`RATE`, or a JSON array of clauses for a request of phonemes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import NamedTuple

RATE = 22_050  # Hz, of all voices of the library
REQUEST_HEADER = struct.Struct("<I")
FRAME_HEADER = struct.Struct("<I")
MAX_REQUEST_BYTES = 64 * 1024
MAX_FRAME_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 1024 * 1024  # phonemes of a sentence; of 400 digits that are spelled out, some 30 KiB
OUTCOME = struct.Struct("<B")
SPOKEN, FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class SpeakRequest:
    """A text to speak, or to write in phonemes."""

    text: str
    voice: str  # the library's name: a language, or a language and a variant
    phonemes: bool = False  # write it instead of speaking it

    def to_bytes(self) -> bytes:
        body = json.dumps(asdict(self)).encode()
        return REQUEST_HEADER.pack(len(body)) + body

    @classmethod
    def from_bytes(cls, body: bytes) -> SpeakRequest:
        """Raises ValueError, TypeError or KeyError on anything but what `to_bytes` gives."""
        fields = json.loads(body)
        return cls(str(fields["text"]), str(fields["voice"]), bool(fields["phonemes"]))


class Clause(NamedTuple):
    """A part of a text in phonemes."""

    phonemes: str  # of the International Phonetic Alphabet
    ending: str  # the sign that ends it, or ""
