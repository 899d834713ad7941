"""Turns samples into the bytes of a file, written from beginning to end without going back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE, wav_header
from asr_server.features.speech_output.encoding.formats import ChapterMark, SpeechFormat

Samples = NDArray[np.float32]


def writer(speech_format: SpeechFormat, chapters: Sequence[ChapterMark] = ()) -> PcmWriter | LibavWriter:
    """Return a writer for a new file. `write` clips to full scale and returns the ready bytes; `finish` the rest."""
    if speech_format is SpeechFormat.PCM:
        return PcmWriter()
    if speech_format is SpeechFormat.WAV:
        return PcmWriter(wav_header(None, SPEECH_RATE))
    return LibavWriter(_CODECS[speech_format], chapters)


def rounded(samples: Samples) -> NDArray[np.int16]:
    """Return the nearest 16-bit numbers; full scale is 32768."""
    numbers: NDArray[np.int16] = np.rint(samples * np.float32(32_768)).clip(-32_768, 32_767).astype("<i2")
    return numbers


class PcmWriter:
    """Int16, little-endian, after a header."""

    def __init__(self, header: bytes = b"") -> None:
        self.samples = 0  # written so far
        self._header = header

    def write(self, samples: Samples) -> bytes:
        self.samples += len(samples)
        header, self._header = self._header, b""
        return header + rounded(samples).tobytes()

    def finish(self) -> bytes:
        return self._header


@dataclass(frozen=True, slots=True)
class _Codec:
    name: str
    sample_format: str
    container: str
    bits_per_s: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    chapter_options: dict[str, str] | None = None  # None: its files have no chapters


_ID3 = {"id3v2_version": "3"}
# Each fragment has its own index, so no memory grows with the file, and nothing has to be written later.
_FRAGMENTS = {"movflags": "+empty_moov+default_base_moof", "frag_duration": "10000000"}
_CODECS = {
    # No Xing header: it states the length, which is not known when the header is written.
    SpeechFormat.MP3: _Codec("libmp3lame", "fltp", "mp3", 64_000, {"write_xing": "0", "id3v2_version": "0"}, _ID3),
    SpeechFormat.OPUS: _Codec("libopus", "flt", "ogg", 48_000, {"page_duration": "100000"}),
    SpeechFormat.AAC: _Codec("aac", "fltp", "adts", 64_000),
    SpeechFormat.FLAC: _Codec("flac", "s16", "flac"),
    SpeechFormat.M4B: _Codec("aac", "fltp", "ipod", 64_000, _FRAGMENTS, {}),
}
# FFmpeg does not recognise an MP3 file of two frames, and no lossy format can have a file without sound.
_MIN_LOSSY_SAMPLES = SPEECH_RATE // 10
# A page or frame is written when it is complete. The file has no version number of a library and no random number.
_CONTAINER_OPTIONS = {"fflags": "+bitexact", "flush_packets": "1", "metadata_header_padding": "0"}


class LibavWriter:
    """A file written by one of libav's encoders."""

    def __init__(self, codec: _Codec, chapters: Sequence[ChapterMark] = ()) -> None:
        self.samples = 0
        self._written = _Written()
        options = _CONTAINER_OPTIONS | codec.options | ((codec.chapter_options or {}) if chapters else {})
        self._container = av.open(self._written, "w", format=codec.container, options=options)
        stream = self._container.add_stream(codec.name, SPEECH_RATE, layout="mono", format=codec.sample_format)
        assert isinstance(stream, av.AudioStream)
        self._stream = stream
        if codec.bits_per_s is not None:
            self._stream.bit_rate = codec.bits_per_s
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.flags |= av.codec.context.Flags.bitexact
        if chapters and codec.chapter_options is not None:
            time_base = Fraction(1, SPEECH_RATE)
            self._container.set_chapters(
                [
                    {
                        "id": n,
                        "start": one.start,
                        "end": one.end,
                        "time_base": time_base,
                        "metadata": {"title": one.title},
                    }
                    for n, one in enumerate(chapters)
                ]
            )
        self._container.start_encoding()
        self._format = codec.sample_format

    def write(self, samples: Samples) -> bytes:
        if len(samples):
            self._encode(samples)
        return self._written.taken()

    def finish(self) -> bytes:
        if self._format != "s16" and self.samples < _MIN_LOSSY_SAMPLES:
            self._encode(np.zeros(_MIN_LOSSY_SAMPLES - self.samples, np.float32))
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._written.taken()

    def _encode(self, samples: Samples) -> None:
        content = rounded(samples) if self._format == "s16" else samples.clip(-1, 1)
        frame = av.AudioFrame.from_ndarray(content[np.newaxis], format=self._format, layout="mono")
        frame.sample_rate, frame.time_base, frame.pts = SPEECH_RATE, Fraction(1, SPEECH_RATE), self.samples
        self.samples += len(samples)
        self._container.mux(self._stream.encode(frame))


class _Written:
    """A file that can only be appended to."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def taken(self) -> bytes:
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken
