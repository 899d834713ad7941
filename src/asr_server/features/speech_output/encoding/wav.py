"""WAV headers for speech: 16 bits, mono, `SPEECH_RATE`."""

from __future__ import annotations

import struct

from asr_server.core.audio import SPEECH_RATE

# The size of a stream whose end is not known yet. Readers take it for "until the end of the file".
_UNKNOWN = 0xFFFF_FFFF
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
HEADER_BYTES = _HEADER.size
_PCM, _MONO, _SAMPLE_BYTES = 1, 1, 2


def wav_header(data_bytes: int | None) -> bytes:
    """Return the 44 bytes before the samples. None: their number is not known yet. Raises ValueError over 4 GiB."""
    if data_bytes is not None and not 0 <= data_bytes < _UNKNOWN - HEADER_BYTES:
        raise ValueError(f"{data_bytes} bytes do not fit into a WAV file")
    riff_bytes = _UNKNOWN if data_bytes is None else HEADER_BYTES - 8 + data_bytes
    return _HEADER.pack(
        *(b"RIFF", riff_bytes, b"WAVE", b"fmt ", 16, _PCM, _MONO),
        *(SPEECH_RATE, SPEECH_RATE * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES),
        *(b"data", _UNKNOWN if data_bytes is None else data_bytes),
    )


def wav_file(pcm: bytes) -> bytes:
    """Return a whole file of int16 little-endian samples."""
    return wav_header(len(pcm)) + pcm
