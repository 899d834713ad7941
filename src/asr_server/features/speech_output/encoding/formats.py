"""The formats of spoken answers, the options of the encoder, and the lengths in headers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from asr_server.core.audio import SPEECH_RATE, WAV_HEADER_BYTES, wav_header

MIN_SPEED, MAX_SPEED = 0.25, 4.0
MAX_PAUSE_MS = 10_000


class SpeechFormat(StrEnum):
    """The formats of speech, all mono with 24 kHz. WAV and PCM have 16 bits, little-endian; Opus is in Ogg, AAC in
    ADTS.

    M4B is AAC in fragments of MP4: too much at a time for an answer that is heard while it is made.
    """

    MP3 = "mp3"
    OPUS = "opus"
    AAC = "aac"
    FLAC = "flac"
    WAV = "wav"
    PCM = "pcm"
    M4B = "m4b"

    @property
    def media_type(self) -> str:
        return _MEDIA_TYPES[self]


_MEDIA_TYPES = {
    SpeechFormat.MP3: "audio/mpeg",
    SpeechFormat.OPUS: "audio/ogg",
    SpeechFormat.AAC: "audio/aac",
    SpeechFormat.FLAC: "audio/flac",
    SpeechFormat.WAV: "audio/wav",
    SpeechFormat.PCM: "audio/pcm",
    SpeechFormat.M4B: "audio/mp4",
}
# The formats of answers that are heard while they are made.
STREAMED_FORMATS = tuple(one for one in SpeechFormat if one is not SpeechFormat.M4B)


class ChapterMark(NamedTuple):
    """A chapter of the file."""

    start: int  # sample at `SPEECH_RATE`
    end: int  # sample at `SPEECH_RATE`
    title: str


@dataclass(frozen=True, slots=True)
class EncodingOptions:
    """The options for making a file of the sentences of a request."""

    format: SpeechFormat
    speed: float = 1.0  # 2 takes half of the time at the same pitch
    pause_ms: int = 250  # between two sentences, at speed 1
    trim: bool = True  # leave 30 ms of the silence at each end of a sentence
    chapters: tuple[ChapterMark, ...] = ()  # only for MP3 and M4B files, which list them at the beginning


# RFC 9639, 8.2: STREAMINFO follows the four letters and a block header of 4 bytes. The number of samples is in the low
# 36 bits of its bytes 10 to 18.
_SAMPLES_BEGIN, _SAMPLES_END = 18, 26
_SAMPLES_BITS = 36


def with_length(speech_format: SpeechFormat, file: bytes, samples: int) -> bytes:
    """Return `file` with its length of `samples` samples in the header. `file` may be only the beginning of the file,
    but with the whole header. Formats that state no length stay as they are.

    Some readers need the length: libsndfile reads no FLAC stream of unknown length.
    """
    if speech_format is SpeechFormat.WAV:
        return wav_header(2 * samples, SPEECH_RATE) + file[WAV_HEADER_BYTES:]
    if speech_format is SpeechFormat.FLAC:
        field = int.from_bytes(file[_SAMPLES_BEGIN:_SAMPLES_END], "big") | samples % (1 << _SAMPLES_BITS)
        return file[:_SAMPLES_BEGIN] + field.to_bytes(8, "big") + file[_SAMPLES_END:]
    return file
