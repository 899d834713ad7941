"""The first audio track of an open file, as float32 blocks at the track's own rate; runs in the child alone.

libavformat reads through `FileBytes`, which has one descriptor and no path. The demuxer is chosen here (see `sniff`),
only the audio decoders listed here may be opened, and every request to open something else (external data
references, segments) fails.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import av
import numpy as np
from av.stream import Discard
from numpy.typing import NDArray

from asr_server.audio import sniff
from asr_server.audio.decoder_wire import DecodeError, FrameType

Samples = NDArray[np.float32]

MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000  # too low for speech; too high for any converter: a damaged header
MAX_CHANNELS = 64  # more is a damaged header
_MAX_ID3_TAGS = 8
_MAX_PACKET_S = 10.0  # a FLAC block at 8 kHz lasts 8.2 s; an Ogg with a wrong last granule claims a packet of a day

# Containers with presentation times: a track may begin after the picture and pause. In the others times are counted
# from the bytes.
_TIMED = frozenset({"mov", "matroska"})
# A shorter gap is jitter, or a recorder's clock that drifts; a longer one is a damaged time.
_LEAST_GAP_S, _LONGEST_GAP_S = 0.25, 3_600.0

_OGG_FIRST_PAGE = b"OggS\x00\x02"  # a page that begins a stream (RFC 3533, section 6)

_PCM = [f"pcm_{kind}{bits}{order}" for kind in "suf" for bits in (16, 24, 32, 64) for order in ("le", "be")]
_PLAIN = ["pcm_u8", "pcm_s8", "pcm_alaw", "pcm_mulaw", "adpcm_ms", "adpcm_ima_wav", "adpcm_ima_qt"]
_PHONE = ["gsm", "gsm_ms", "g722", "amrnb", "amrwb", "speex"]
_MODERN = ["flac", "alac", "opus", "vorbis", "aac", "ac3", "eac3"]
_MPEG = ["mp1", "mp2", "mp3", "mp1float", "mp2float", "mp3float"]
DECODERS = frozenset([*_PCM, *_PLAIN, *_PHONE, *_MODERN, *_MPEG])

_OPTIONS = {
    "protocol_whitelist": "none",
    "codec_whitelist": ",".join(DECODERS),  # also keeps the header search from decoding video: 2.3 -> 0.3 ms on an MP4
    "probesize": "65536",  # how far the search for stream parameters may read
    "max_probe_packets": "0",  # no search for S/PDIF and DTS inside PCM: 2.7 -> 0.5 ms on a 3 s WAV
    "enable_drefs": "0",
}
# Nothing seeks, and to sort the 800,000 cues of a 13 MB Matroska file takes a minute and more. Not for MP4: without its
# index, a fragmented one claims the length of its first fragment.
_MATROSKA_OPTIONS = {**_OPTIONS, "fflags": "+ignidx"}
_DTYPES = {  # libav sample format without its planar mark: numpy type, value of silence, full scale
    "u8": (np.uint8, 128.0, 128.0),
    "s16": (np.int16, 0.0, 32_768.0),
    "s32": (np.int32, 0.0, 2_147_483_648.0),
    "s64": (np.int64, 0.0, 9_223_372_036_854_775_808.0),
    "flt": (np.float32, 0.0, 1.0),
    "dbl": (np.float64, 0.0, 1.0),
}


class FileBytes:
    """A descriptor from byte `begin` on, as the file object that PyAV reads.

    Keeps its own position: the descriptor's position is shared with the server and must not move.
    """

    def __init__(self, fd: int, size_bytes: int, begin: int = 0) -> None:
        self._fd, self._size_bytes, self._begin, self._at = fd, size_bytes - begin, begin, 0

    def read(self, count: int) -> bytes:
        piece = os.pread(self._fd, count, self._begin + self._at)
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at


def _demuxer_of_file(fd: int) -> str | None:
    """Name of the demuxer for the content behind `fd`, ID3v2 tags skipped; None if there is none."""
    at = 0
    for _ in range(_MAX_ID3_TAGS):
        head = os.pread(fd, sniff.HEAD_BYTES, at)
        tag_bytes = sniff.id3_bytes(head)
        if not tag_bytes:
            return sniff.demuxer_of(head)
        at += tag_bytes
    return None


@dataclass(frozen=True, slots=True)
class AudioBlock:
    """Decoded audio at one rate."""

    samples: Samples  # (channels, n) float32, finite; full scale is 1, louder is possible
    rate_hz: int


class Demuxer:
    """The first audio track of the file behind `fd`, which has `size_bytes`.

    Raises `DecodeError(INVALID_AUDIO)` if no listed demuxer or decoder reads it, `DecodeError(NO_AUDIO_TRACK)` for
    video alone, and libav's own errors, which all mean invalid audio.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        demuxer = _demuxer_of_file(fd)
        if demuxer is None:
            raise DecodeError(FrameType.INVALID_AUDIO)
        self._fd, self._size_bytes, self._demuxer = fd, size_bytes, demuxer
        self._read_to = 0
        self._open(0)
        self._gaps = _Gaps(self._container.start_time if demuxer in _TIMED else None)
        self.damaged = False

    def _open(self, begin: int) -> None:
        self._container = av.open(
            FileBytes(self._fd, self._size_bytes, begin),
            "r",
            format=self._demuxer,
            options=_MATROSKA_OPTIONS if self._demuxer == "matroska" else _OPTIONS,
            metadata_errors="ignore",
            io_open=_refuse_to_open,
        )
        self._stream = _first_audio(self._container)
        self._begin = begin

    def claimed_s(self) -> float | None:
        """Return the longest duration that the headers claim, or None. Headers may be wrong."""
        claims = [self._container.duration / 1e6] if self._container.duration else []
        if self._stream.duration and self._stream.time_base:
            claims.append(float(self._stream.duration * self._stream.time_base))
        return max(claims, default=None)

    def is_longer_than(self, duration_s: float) -> bool:
        """True if packets and gaps add up to more than that, counted without decoding. Reads the track to its end."""
        total_s = 0.0
        for packet in self._packets():
            lasts_s = float((packet.duration or 0) * (packet.time_base or 0))
            if 0.0 < lasts_s <= _MAX_PACKET_S:
                starts_s = None if packet.pts is None else float(packet.pts * packet.time_base)
                total_s += lasts_s + self._gaps.before(starts_s, lasts_s)
            if total_s > duration_s:
                return True
        return False

    def blocks(self) -> Iterator[AudioBlock]:
        """Decoded audio in order, about 1 s at a time, bounded in memory; silence where the container has a gap.

        Damaged packets are left out, and a truncated file ends early, as in players; `damaged` is then True.
        """
        buffer = _FrameBuffer()
        try:
            for packet in self._packets():
                for frame in self._frames(packet):
                    lasts_s = frame.samples / max(1, frame.sample_rate)
                    yield from buffer.add(frame, self._gaps.before(frame.time, lasts_s))
        except av.error.MemoryError:
            self.damaged = True
        yield from buffer.drain()

    def _packets(self) -> Iterator[av.Packet[av.AudioStream]]:
        """Yield all packets, up to where the file breaks off."""
        while True:
            try:
                for packet in self._container.demux(self._stream):
                    self._read_to = max(self._read_to, self._begin + (packet.pos or 0))
                    yield packet
                return
            except (av.error.FFmpegError, OSError):
                self.damaged = True
            if not self._open_next_link():
                return

    def _open_next_link(self) -> bool:
        """Go to the next link of a chained Ogg; libavformat stops at one with another codec or other channels."""
        at = _find(self._fd, _OGG_FIRST_PAGE, self._read_to + 1) if self._demuxer == "ogg" else None
        if at is None:
            return False
        self._read_to = at
        try:
            self._open(at)
        except (av.error.FFmpegError, OSError, DecodeError):
            return False
        return True

    def _frames(self, packet: av.Packet[av.AudioStream]) -> list[av.AudioFrame]:
        try:
            return packet.decode()
        except av.error.MemoryError:
            raise
        except (av.error.FFmpegError, ValueError):
            self.damaged = True
            return []


def _find(fd: int, pattern: bytes, begin: int) -> int | None:
    """Return the position of `pattern` in the file, from byte `begin` on."""
    while block := os.pread(fd, sniff.HEAD_BYTES, begin):
        if (found := block.find(pattern)) >= 0:
            return begin + found
        if len(block) <= len(pattern):
            return None
        begin += len(block) - len(pattern)
    return None


class _Gaps:
    """The silence between the packets of a track by their own times.

    `start_us`: when the file begins, all its tracks together; None if the container has no such times.
    """

    def __init__(self, start_us: int | None) -> None:
        self._due_s = None if start_us is None else start_us / 1e6

    def before(self, starts_s: float | None, lasts_s: float) -> float:
        """Seconds of silence before the next packet or frame."""
        if self._due_s is None or starts_s is None:
            return 0.0
        lack_s = starts_s - self._due_s
        gap_s = lack_s if _LEAST_GAP_S <= lack_s <= _LONGEST_GAP_S else 0.0
        begins_s = starts_s if lack_s > _LONGEST_GAP_S else self._due_s + gap_s
        self._due_s = begins_s + lasts_s
        return gap_s


class _FrameBuffer:
    """Collects frames of one format to about a second, so that numpy and the resampler are called once a second."""

    def __init__(self) -> None:
        self._format: tuple[str, int, int] = ("", 0, 0)  # sample format, channels, rate
        self._planes: list[NDArray[np.generic]] = []
        self._samples = 0

    def add(self, frame: av.AudioFrame, gap_s: float) -> Iterator[AudioBlock]:
        kind = (frame.format.name, frame.layout.nb_channels, frame.sample_rate)
        if kind != self._format:
            yield from self.drain()
            _check_format(kind)
            self._format = kind
        if gap_s:
            yield from self.drain()
            yield from _silence(round(gap_s * kind[2]), kind)
        self._planes.append(frame.to_ndarray())
        self._samples += frame.samples
        if self._samples >= kind[2]:
            yield from self.drain()

    def drain(self) -> Iterator[AudioBlock]:
        if self._planes:
            raw = np.concatenate(self._planes, axis=1)
            self._planes, self._samples = [], 0
            yield AudioBlock(_to_channels(raw, self._format), self._format[2])


def _silence(samples: int, kind: tuple[str, int, int]) -> Iterator[AudioBlock]:
    _, channels, rate_hz = kind
    second: Samples = np.zeros((channels, rate_hz), np.float32)
    for at in range(0, samples, rate_hz):
        yield AudioBlock(second[:, : samples - at], rate_hz)


def _check_format(kind: tuple[str, int, int]) -> None:
    name, channels, rate_hz = kind
    if (
        name.removesuffix("p") not in _DTYPES
        or not 1 <= channels <= MAX_CHANNELS
        or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ
    ):
        raise DecodeError(FrameType.INVALID_AUDIO)


def _to_channels(raw: NDArray[np.generic], kind: tuple[str, int, int]) -> Samples:
    """Samples of libav, planar (channels, n) or packed (1, n * channels) -> (channels, n) float32, full scale 1."""
    name, channels, _ = kind
    _, silence, scale = _DTYPES[name.removesuffix("p")]
    planes = raw if name.endswith("p") else raw.reshape(-1, channels).T
    if name.startswith(("flt", "dbl")):
        # A float file may hold anything: NaN and infinities become silence; 2**31 is the full scale of files that hold
        # floats scaled like integers.
        planes = np.clip(np.nan_to_num(planes, nan=0.0, posinf=0.0, neginf=0.0), -(2.0**31), 2.0**31)
    signal = planes.astype(np.float32)
    if silence:
        signal -= np.float32(silence)
    signal *= np.float32(1.0 / scale)
    return signal


def _first_audio(container: av.container.InputContainer) -> av.AudioStream:
    if not container.streams.audio:
        raise DecodeError(FrameType.NO_AUDIO_TRACK if len(container.streams) else FrameType.INVALID_AUDIO)
    stream = container.streams.audio[0]
    context = stream.codec_context
    if context is None or context.name not in DECODERS:
        raise DecodeError(FrameType.INVALID_AUDIO)
    context.thread_count = 1  # the sandbox forbids threads
    for other in container.streams:
        if other.index != stream.index:
            other.discard = Discard.all  # MP4 and Matroska then skip video data without reading it
    return stream


def _refuse_to_open(url: str, flags: int, options: dict[str, str]) -> object:
    raise PermissionError("a file may not open another")
