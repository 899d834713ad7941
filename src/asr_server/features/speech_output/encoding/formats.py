"""The formats of spoken answers, and what can be asked of the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

MIN_SPEED, MAX_SPEED = 0.25, 4.0
MAX_PAUSE_MS = 10_000
MIN_LUFS, MAX_LUFS = -40.0, -10.0


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
    """The way from the sentences of a request to its file. Raises ValueError for a number out of its range."""

    format: SpeechFormat
    speed: float = 1.0  # 2 takes half of the time at the same pitch
    pause_ms: int = 250  # between two sentences, at speed 1
    trim: bool = True  # leave 30 ms of the silence at each end of a sentence
    loudness_lufs: float | None = None  # by BS.1770; None leaves the level as it is
    chapters: tuple[ChapterMark, ...] = ()  # of MP3 and M4B files, which have them at their beginning

    def __post_init__(self) -> None:
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise ValueError(f"speed {self.speed}")
        if not 0 <= self.pause_ms <= MAX_PAUSE_MS / MIN_SPEED:  # of slow speech of an engine, pauses are longer too
            raise ValueError(f"pause_ms {self.pause_ms}")
        if self.loudness_lufs is not None and not MIN_LUFS <= self.loudness_lufs <= MAX_LUFS:
            raise ValueError(f"loudness_lufs {self.loudness_lufs}")
