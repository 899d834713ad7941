"""Headers of WAV files, and the lengths in those of WAV and FLAC, which a stream cannot state."""

from __future__ import annotations

import struct

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.speech_output.encoding.formats import SpeechFormat

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


# RFC 9639, 8.2: STREAMINFO follows the four letters and a block header of 4 bytes. The number of samples is in the low
# 36 bits of its bytes 10 to 18.
_SAMPLES_BEGIN, _SAMPLES_END = 18, 26
_SAMPLES_BITS = 36


def with_length(speech_format: SpeechFormat, file: bytes, samples: int) -> bytes:
    """Return a file of `samples` samples, or its beginning with at least the header, whose header says so. Other
    formats state no length and stay as they are.

    Some readers need it: libsndfile reads no FLAC stream of unknown length.
    """
    if speech_format is SpeechFormat.WAV:
        return wav_header(2 * samples) + file[HEADER_BYTES:]
    if speech_format is SpeechFormat.FLAC:
        field = int.from_bytes(file[_SAMPLES_BEGIN:_SAMPLES_END], "big") | samples % (1 << _SAMPLES_BITS)
        return file[:_SAMPLES_BEGIN] + field.to_bytes(8, "big") + file[_SAMPLES_END:]
    return file
