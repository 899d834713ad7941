"""Whole WAV files, and the lengths in the headers of WAV and FLAC, which a stream cannot state."""

from __future__ import annotations

from asr_server.core.audio import SPEECH_RATE, WAV_HEADER_BYTES, wav_header
from asr_server.features.speech_output.encoding.formats import SpeechFormat


def wav_file(pcm: bytes) -> bytes:
    """Return a whole file of int16 little-endian samples."""
    return wav_header(len(pcm), SPEECH_RATE) + pcm


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
        return wav_header(2 * samples, SPEECH_RATE) + file[WAV_HEADER_BYTES:]
    if speech_format is SpeechFormat.FLAC:
        field = int.from_bytes(file[_SAMPLES_BEGIN:_SAMPLES_END], "big") | samples % (1 << _SAMPLES_BITS)
        return file[:_SAMPLES_BEGIN] + field.to_bytes(8, "big") + file[_SAMPLES_END:]
    return file
