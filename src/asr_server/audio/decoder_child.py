"""A child process of the fork server: it decodes one file and exits. One descriptor in, one out.

The first audio track becomes float32 blocks at the track's own rate. libavformat reads through `FileBytes`, which has
one descriptor and no path. The demuxer is chosen here (see `sniff`), only the audio decoders listed here may be opened,
and every request to open something else (external data references, segments) fails.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import av
import av.subtitles.codeccontext  # PyAV imports these two at the first file with subtitles, when nothing can be opened
import av.subtitles.stream
import numpy as np
from av.stream import Discard
from numpy.typing import NDArray

from asr_server.audio import sniff
from asr_server.audio.decoder_wire import (
    CHANNELS,
    CLAIM,
    HEADER,
    LOST,
    MAX_PCM_BYTES,
    MIN_DURATION_S,
    DecodeError,
    DecodeRequest,
    FrameType,
    kept_channels,
)
from asr_server.audio.resample import Resampler
from asr_server.processes import sandbox


def interleaved(channels: Samples, count: int) -> Samples:
    """Return (channels, n) float32 as (n, count), or as (n,) where `count` is 1.

    A part of a file whose channels are others than before (chained Ogg) is mixed, and goes to the first of several.
    """
    if count == 1:
        return mix(channels)
    if len(channels) == count:
        return np.ascontiguousarray(channels.T)
    frames: Samples = np.zeros((channels.shape[1], count), np.float32)
    frames[:, 0] = mix(channels)
    return frames


def mix(channels: Samples) -> Samples:
    """(channels, n) float32 -> (n,): the mean, as ffmpeg and the SDK do, unless the channels cancel each other.

    A balanced line recorded as stereo has its voice in opposite phase, and the mean would be near silence. If the
    mean has less than 1/20 of the energy that uncorrelated channels would leave in it (1 / channels), the first
    channel that is at least half as strong as the strongest is used instead. The choice is made again about every
    second.
    """
    count = channels.shape[0]
    first: Samples = channels[0]
    if count == 1:
        return first
    mean: Samples = channels.mean(axis=0, dtype=np.float32)
    energies = np.einsum("cn,cn->c", channels, channels, dtype=np.float64)
    if float(mean @ mean) >= 0.05 / count * float(energies.mean()):
        return mean
    strong: Samples = channels[int(np.argmax(energies >= 0.5 * energies.max()))]
    return strong


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
    is_lost: bool = False  # it is silence in place of damaged packets


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
        self._has_lost = False  # a packet could not be decoded since the last frame

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
                    yield from buffer.add(frame, self._gaps.before(frame.time, lasts_s), is_lost=self._has_lost)
                    self._has_lost = False
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
            self.damaged = self._has_lost = True
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

    def add(self, frame: av.AudioFrame, gap_s: float, *, is_lost: bool) -> Iterator[AudioBlock]:
        kind = (frame.format.name, frame.layout.nb_channels, frame.sample_rate)
        if kind != self._format:
            yield from self.drain()
            _check_format(kind)
            self._format = kind
        if gap_s:
            yield from self.drain()
            yield from _silence(round(gap_s * kind[2]), kind, is_lost=is_lost)
        self._planes.append(frame.to_ndarray())
        self._samples += frame.samples
        if self._samples >= kind[2]:
            yield from self.drain()

    def drain(self) -> Iterator[AudioBlock]:
        if self._planes:
            raw = np.concatenate(self._planes, axis=1)
            self._planes, self._samples = [], 0
            yield AudioBlock(_to_channels(raw, self._format), self._format[2])


def _silence(samples: int, kind: tuple[str, int, int], *, is_lost: bool) -> Iterator[AudioBlock]:
    _, channels, rate_hz = kind
    second: Samples = np.zeros((channels, rate_hz), np.float32)
    for at in range(0, samples, rate_hz):
        yield AudioBlock(second[:, : samples - at], rate_hz, is_lost)


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


_WARM_UP_RATE_HZ = 48_000
_COUNT_SLACK_S = 1.0  # packets include the encoder's delay and padding, which decoding takes off


def run(message: bytes, source_fd: int, out_fd: int) -> None:
    """Enter the sandbox and decode the file."""
    request = DecodeRequest(**json.loads(message))
    sandbox.lock(request.memory_bytes, request.cpu_s)
    _write(out_fd, HEADER.pack(FrameType.STARTED, 0))
    _write(out_fd, HEADER.pack(_outcome(request, source_fd, out_fd), 0))


def warm_up() -> None:
    """Decode a WAV of silence: PyAV, numpy and soxr import files at first use, which the sandbox would forbid."""
    np.seterr(all="ignore")
    av.logging.set_level(None)  # libav's messages quote the file
    silence = bytes(8 * _WARM_UP_RATE_HZ // 2)
    fmt = struct.pack("<HHIIHH", 3, 2, _WARM_UP_RATE_HZ, 8 * _WARM_UP_RATE_HZ, 8, 32)
    chunks = b"fmt " + struct.pack("<I", len(fmt)) + fmt + b"data" + struct.pack("<I", len(silence)) + silence
    wav = b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks
    source_fd, null_fd = os.memfd_create("warm-up"), os.open(os.devnull, os.O_WRONLY)
    os.write(source_fd, wav)
    decode(DecodeRequest(len(wav), 1.0, 0, 0.0, 0.0, 0.0), source_fd, null_fd)
    os.close(source_fd)
    os.close(null_fd)


def _outcome(request: DecodeRequest, source_fd: int, out_fd: int) -> FrameType:
    try:
        return decode(request, source_fd, out_fd)
    except DecodeError as error:
        return error.outcome
    except Exception:  # whatever libav, numpy or the memory limit raise here, this file cannot be decoded
        return FrameType.INVALID_AUDIO


def decode(request: DecodeRequest, source_fd: int, out_fd: int) -> FrameType:
    """Write the file's PCM frames to `out_fd` and return how it ended. Raises `DecodeError` and libav's errors.

    The duration that the headers claim is trusted until decoding passes it (never, if it is missing or over the
    limit). Then the packets are counted before more is decoded, so that ten hours of silence in a megabyte are refused
    at once. A file that takes too much CPU time for its next block of audio ends the process.
    """
    sandbox.limit_cpu_from_now(request.first_cpu_s)
    demuxer, output = Demuxer(source_fd, request.file_bytes), _Output(out_fd, request)
    claimed_s = demuxer.claimed_s() or 0.0
    trusted_s = claimed_s if claimed_s <= request.max_audio_s else 0.0
    if trusted_s > 0:
        _write(out_fd, HEADER.pack(FrameType.CLAIM, CLAIM.size) + CLAIM.pack(trusted_s))
    max_samples = round(request.max_audio_s * request.rate_hz) + 1
    written = 0
    for block in demuxer.blocks():
        written += output.write(block)
        sandbox.limit_cpu_from_now(request.block_cpu_s)  # anew, so that a long file does not end for its length
        if written > max_samples:
            return FrameType.AUDIO_TOO_LONG
        if written > (trusted_s + _COUNT_SLACK_S) * request.rate_hz:
            trusted_s = float("inf")  # the packets are counted once
            if Demuxer(source_fd, request.file_bytes).is_longer_than(request.max_audio_s + _COUNT_SLACK_S):
                return FrameType.AUDIO_TOO_LONG
    written += output.flush()
    if written > max_samples:
        return FrameType.AUDIO_TOO_LONG
    if written < MIN_DURATION_S * request.rate_hz:
        return FrameType.INVALID_AUDIO if demuxer.damaged else FrameType.AUDIO_TOO_SHORT
    return FrameType.END


class _Output:
    """Writes the PCM frames. The channels of the first block are those of the file."""

    def __init__(self, out_fd: int, request: DecodeRequest) -> None:
        self._out_fd, self._max_channels, self._rate_hz = out_fd, request.max_channels, request.rate_hz
        self._channels = 0  # unknown
        self._end_s = 0.0  # of what was written
        self._resampler = Resampler()

    def write(self, block: AudioBlock) -> int:
        """Returns how many samples of each channel were written."""
        if not self._channels:
            found = len(block.samples)
            self._channels = kept_channels(found, self._max_channels)
            self._resampler = Resampler(self._channels, self._rate_hz)
            if self._max_channels > 1:
                _write(self._out_fd, HEADER.pack(FrameType.CHANNELS, CHANNELS.size) + CHANNELS.pack(found))
        begin_s, self._end_s = self._end_s, self._end_s + block.samples.shape[1] / block.rate_hz
        if block.is_lost:
            _write(self._out_fd, HEADER.pack(FrameType.LOST, LOST.size) + LOST.pack(begin_s, self._end_s))
        return self._pcm(self._resampler.push(interleaved(block.samples, self._channels), block.rate_hz))

    def flush(self) -> int:
        """Write what the resampler still holds. Returns how many samples of each channel were written."""
        return self._pcm(self._resampler.flush())

    def _pcm(self, samples: Samples) -> int:
        """Frames of at most `MAX_PCM_BYTES`, which end between two samples of all channels."""
        if not samples.size:
            return 0
        payload = np.ascontiguousarray(samples).data.cast("B")
        step = MAX_PCM_BYTES - MAX_PCM_BYTES % (4 * self._channels)
        for at in range(0, len(payload), step):
            piece = payload[at : at + step]
            _write(self._out_fd, HEADER.pack(FrameType.PCM, len(piece)))
            _write(self._out_fd, piece)
        return len(samples)


def _write(fd: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
