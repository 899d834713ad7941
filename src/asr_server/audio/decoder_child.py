"""A child process of the fork server: it decodes one file and exits. One descriptor in, one out.

One audio track becomes float32 blocks at the track's own rate. libavformat reads through `FileBytes`, which has
one descriptor and no path. The demuxer is chosen here (see `sniff`), only the audio decoders listed here may be opened,
and every request to open something else (external data references, segments) fails.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Literal, cast

import av
import av.subtitles.codeccontext  # PyAV imports these two at the first file with subtitles, when nothing can be opened
import av.subtitles.stream
import numpy as np
from av.audio.plane import AudioPlane
from av.stream import Discard, Disposition
from numpy.typing import NDArray

from asr_server.audio import sniff
from asr_server.audio.decoder_wire import (
    MAX_PCM_BYTES,
    MIN_DURATION_S,
    DecodeError,
    DecodeRequest,
    Outcome,
    kept_channels,
)
from asr_server.audio.resample import AudioBlock, Resampler, Samples, interleaved
from asr_server.processes import messages, sandbox

MIN_RATE_HZ, MAX_RATE_HZ = 1_000, 768_000  # too low for speech; too high for any converter: a damaged header
MAX_CHANNELS = 64  # more is a damaged header
_MAX_PACKET_S = 10.0  # a FLAC block at 8 kHz lasts 8.2 s; an Ogg with a wrong last granule claims a packet of a day

# Containers with presentation times: a track may begin after the picture and pause. In other containers, times are
# counted from the bytes. The clock of an MPEG stream may jump where recordings were joined.
_JUMPING = frozenset({"mpeg", "mpegts"})
_TIMED = frozenset({"mov", "matroska", "avi", "asf", "flv"}) | _JUMPING
# A shorter gap is jitter, or drift of a recorder's clock; a longer one is a damaged time, or a jump of the clock.
_LEAST_GAP_S, _LONGEST_GAP_S, _LONGEST_JUMP_S = 0.25, 3_600.0, 10.0
_MOST_HELD = 256  # audio packets that wait for the first picture

_NEXT_LINK = {  # how the next file begins in a chain
    "ogg": re.compile(rb"OggS\x00\x02"),  # a page that begins a stream (RFC 3533, section 6)
    "wav": re.compile(rb"(?s)(?:RIFF|RIFX|RF64|BW64)....WAVE"),
}
_LINK_BYTES = 12
_MAX_CHUNKS = 64  # before the samples of a WAV

_PCM = [f"pcm_{kind}{bits}{order}" for kind in "suf" for bits in (16, 24, 32, 64) for order in ("le", "be")]
_PLAIN = ["pcm_u8", "pcm_s8", "pcm_alaw", "pcm_mulaw", "pcm_bluray", "pcm_dvd"]
_ADPCM = ["adpcm_ms", "adpcm_ima_wav", "adpcm_ima_qt", "adpcm_swf", "adpcm_yamaha", "g722", "g726", "g726le"]
_PHONE = ["gsm", "gsm_ms", "amrnb", "amrwb", "speex", "nellymoser"]
_MODERN = ["flac", "alac", "opus", "vorbis", "aac", "aac_latm", "ac3", "eac3", "dca", "truehd", "mlp", "wavpack"]
_WINDOWS = ["wmav1", "wmav2", "wmapro", "wmalossless", "wmavoice"]
_MPEG = ["mp1", "mp2", "mp3", "mp1float", "mp2float", "mp3float"]
DECODERS = frozenset([*_PCM, *_PLAIN, *_ADPCM, *_PHONE, *_MODERN, *_WINDOWS, *_MPEG])

_OPTIONS = {
    "protocol_whitelist": "none",
    "codec_whitelist": ",".join(DECODERS),  # also keeps the header search from decoding video: 2.3 -> 0.3 ms on an MP4
    "probesize": "65536",  # how far the search for stream parameters may read
    "max_probe_packets": "0",  # no search for S/PDIF and DTS inside PCM: 2.7 -> 0.5 ms on a 3 s WAV
    "enable_drefs": "0",
}
# Nothing seeks, and sorting the 800,000 cues of a 13 MB Matroska file takes over a minute. MP4 keeps its index: without
# it, a fragmented file claims the length of its first fragment.
_NO_INDEX = {"fflags": "+ignidx"}
# These do not list their tracks, which are found by their first packets, and do not always name the codec.
_UNLISTED = {**_NO_INDEX, "probesize": "16777216", "analyzeduration": "60000000", "max_probe_packets": "2500"}
_DEMUXER_OPTIONS = {
    **dict.fromkeys(("matroska", "avi", "asf"), _NO_INDEX),
    **dict.fromkeys(("flv", "mpeg", "mpegts"), _UNLISTED),
}
_DTYPES = {  # libav sample format without its planar mark: numpy type, value of silence, full scale
    "u8": (np.uint8, 128.0, 128.0),
    "s16": (np.int16, 0.0, 32_768.0),
    "s32": (np.int32, 0.0, 2_147_483_648.0),
    "s64": (np.int64, 0.0, 9_223_372_036_854_775_808.0),
    "flt": (np.float32, 0.0, 1.0),
    "dbl": (np.float64, 0.0, 1.0),
}

_PICTURE = Disposition.attached_pic | Disposition.timed_thumbnails
_ASIDE = Disposition.comment | Disposition.hearing_impaired | Disposition.visual_impaired


class FileBytes:
    """The bytes of a descriptor from `begin` to `end`, as the file object that PyAV reads.

    Keeps its own position: the descriptor's position is shared with the server and must not move.
    """

    def __init__(self, fd: int, begin: int, end: int) -> None:
        self._fd, self._size_bytes, self._begin, self._at = fd, end - begin, begin, 0

    def read(self, count: int) -> bytes:
        piece = os.pread(self._fd, max(0, min(count, self._size_bytes - self._at)), self._begin + self._at)
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at


class Demuxer:
    """One audio track of the file `fd` of `size_bytes`: as in players, the first track flagged as default, or else the
    first track. If its codec is not supported, the next track with a supported codec is taken.

    Raises `DecodeError(INVALID_AUDIO)` if no listed demuxer or decoder reads it, `DecodeError(NO_AUDIO_TRACK)` if it
    has only video, and libav's own errors, which all mean invalid audio.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        demuxer, begin = sniff.locate(lambda count, at: os.pread(fd, count, at)) or ("", 0)
        if demuxer not in sniff.DEMUXERS:
            raise DecodeError(Outcome.INVALID_AUDIO, demuxer)
        self._fd, self._size_bytes, self._demuxer = fd, size_bytes, demuxer
        self.name = sniff.DEMUXERS[demuxer]
        self._gaps = _Gaps(_LONGEST_JUMP_S if demuxer in _JUMPING else _LONGEST_GAP_S)
        self.damaged = False
        self._has_lost = False  # a packet could not be decoded since the last frame
        self._open(begin)

    def _open(self, begin: int) -> None:
        end, options = self._size_bytes, {**_OPTIONS, **_DEMUXER_OPTIONS.get(self._demuxer, {})}
        if self._demuxer == "wav":
            end = _find(self._fd, _NEXT_LINK["wav"], begin + 1) or end
            options["ignore_length"] = str(int(_wav_is_longer(self._fd, begin, end)))
        self._container = av.open(
            FileBytes(self._fd, begin, end),
            "r",
            format=self._demuxer,
            options={**options, "format_whitelist": self._demuxer},  # AVI would open subtitles with any other demuxer
            metadata_errors="ignore",
            io_open=_refuse_to_open,
        )
        self._read_to = self._begin = begin
        # As players do: tracks flagged as default first, commentaries and descriptions last.
        tracks = sorted(
            self._container.streams.audio,
            key=lambda track: -bool(track.disposition & Disposition.default) - (not track.disposition & _ASIDE),
        )
        if not tracks:
            kind = Outcome.NO_AUDIO_TRACK if len(self._container.streams) else Outcome.INVALID_AUDIO
            raise DecodeError(kind, self.name)
        self._stream = next((track for track in tracks if _codec(track) in DECODERS), tracks[0])
        # The codec of the track that a player would play, if it is unsupported, and the number of the decoded track.
        self.instead_of = _codec_name(tracks[0]) if self._stream is not tracks[0] else ""
        self.number = self._container.streams.audio.index(self._stream) + 1
        self.codec = _codec_name(self._stream)
        if _codec(self._stream) not in DECODERS:
            raise DecodeError(Outcome.INVALID_AUDIO, self.name, self.codec)
        context = self._stream.codec_context
        context.thread_count = 1  # the sandbox forbids threads
        layout = context.layout
        self._channels = tuple(channel.name for channel in layout.channels)
        if " channels (" in layout.name:  # PyAV frees a list of channels again with each frame, which crashes
            context.layout = f"{layout.nb_channels} channels"
        # Streams whose first packet may start the presentation. In MP4 and Matroska, the data of other streams is
        # skipped without being read.
        self._awaited = {}
        for stream in self._container.streams:
            if self._demuxer in _TIMED and stream.type in {"audio", "video"} and not stream.disposition & _PICTURE:
                self._awaited[stream.index] = stream
            elif stream is not self._stream:
                stream.discard = Discard.all

    def claimed_s(self) -> float | None:
        """Return the longest duration that the headers claim, or None. Headers may be wrong."""
        claims = [self._container.duration / 1e6] if self._container.duration else []
        if self._stream.duration and self._stream.time_base:
            claims.append(float(self._stream.duration * self._stream.time_base))
        return max(claims, default=None)

    def is_longer_than(self, duration_s: float) -> bool:
        """True if packets and gaps exceed `duration_s` in total. Decodes nothing, but reads the track to its end."""
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
        """Yield decoded audio in order, about 1 s at a time, in bounded memory, with silence for gaps in the container.

        Damaged packets are left out, and a truncated file ends early, as in players; `damaged` is then True.
        """
        buffer = _FrameBuffer(self._channels)
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
        """Yield all packets of the track, up to where the file breaks off.

        In a container with times, the first packets wait until all streams have begun: the earliest starts the file.
        """
        while True:
            held: list[av.Packet[av.AudioStream]] = []
            try:
                for packet in self._container.demux(self._stream, *self._awaited.values()):
                    if self._awaited.pop(packet.stream_index, None):
                        self._gaps.begin(packet.dts if packet.pts is None else packet.pts, packet.time_base)
                    if packet.stream_index != self._stream.index:
                        packet.stream.discard = Discard.all
                        continue
                    self._read_to = max(self._read_to, self._begin + (packet.pos or 0))
                    held.append(cast("av.Packet[av.AudioStream]", packet))
                    if not self._awaited or len(held) > _MOST_HELD:
                        yield from held
                        held.clear()
            except (av.error.FFmpegError, OSError):
                self.damaged = True
            yield from held
            if not self._open_next_link():
                return

    def _open_next_link(self) -> bool:
        """Open the next file of a chain. libavformat itself stops at an Ogg with another codec or other channels."""
        pattern = _NEXT_LINK.get(self._demuxer)
        at = pattern and _find(self._fd, pattern, self._read_to + 1)
        if not at:
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


def _codec(track: av.AudioStream) -> str:
    return track.codec_context.name if track.codec_context else "unknown"


def _codec_name(track: av.AudioStream) -> str:
    return track.codec_context.codec.canonical_name if track.codec_context else "an unknown codec"


def _find(fd: int, pattern: re.Pattern[bytes], begin: int) -> int | None:
    """Return the position of `pattern` in the file, from byte `begin` on."""
    while block := os.pread(fd, sniff.HEAD_BYTES, begin):
        if found := pattern.search(block):
            return begin + found.start()
        if len(block) <= _LINK_BYTES:
            return None
        begin += len(block) - _LINK_BYTES
    return None


def _is_chunk(head: bytes, order: Literal["big", "little"], left: int) -> bool:
    return all(32 <= letter < 127 for letter in head[:4]) and int.from_bytes(head[4:8], order) <= left


def _wav_is_longer(fd: int, begin: int, end: int) -> bool:
    """True if more data follows the samples that the header of a WAV claims, and it is not another chunk."""
    order: Literal["big", "little"] = "big" if os.pread(fd, 4, begin) == b"RIFX" else "little"
    at = begin + 12
    for _ in range(_MAX_CHUNKS):
        chunk, size = os.pread(fd, 4, at), int.from_bytes(os.pread(fd, 4, at + 4), order)
        at += 8 + size
        if chunk == b"data":  # some writers omit the byte that makes a size even
            after = os.pread(fd, 9, at)
            return size > 0 and at + 8 < end and not any(_is_chunk(after[pad:], order, end - at) for pad in (0, 1))
        at += size % 2
    return False


class _Gaps:
    """The silence between the packets of a track, according to their timestamps."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._due_s = math.inf  # unknown: the container has no times
        self._has_begun = False

    def begin(self, starts: int | None, time_base: Fraction) -> None:
        if starts is not None and not self._has_begun:
            self._due_s = min(self._due_s, float(starts * time_base))

    def before(self, starts_s: float | None, lasts_s: float) -> float:
        """Return the seconds of silence before the next packet or frame."""
        if self._due_s == math.inf:
            return 0.0
        starts_s = self._due_s if starts_s is None else starts_s
        longest_s, self._has_begun = self._longest_s if self._has_begun else _LONGEST_GAP_S, True
        lack_s = starts_s - self._due_s
        gap_s = lack_s if _LEAST_GAP_S <= lack_s <= longest_s else 0.0
        is_jump = not -_LONGEST_JUMP_S <= lack_s <= longest_s
        self._due_s = lasts_s + (starts_s if is_jump else self._due_s + gap_s)
        return gap_s


class _FrameBuffer:
    """Collects frames of one format to about a second, so that numpy and the resampler are called once a second."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self._channels = channels  # as the container has them, for frames that do not name them
        self._format = ("", "", 0)  # sample format, layout, rate
        self._names: tuple[str, ...] = ()
        self._planes: list[NDArray[np.generic]] = []
        self._samples = 0

    def add(self, frame: av.AudioFrame, gap_s: float, *, is_lost: bool) -> Iterator[AudioBlock]:
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self._format:
            yield from self.drain()
            if (
                frame.format.name.removesuffix("p") not in _DTYPES
                or not 1 <= frame.layout.nb_channels <= MAX_CHANNELS
                or not MIN_RATE_HZ <= frame.sample_rate <= MAX_RATE_HZ
            ):
                raise DecodeError(Outcome.INVALID_AUDIO)
            self._format, self._names = kind, tuple(channel.name for channel in frame.layout.channels)
            if "NONE" in self._names and len(self._names) == len(self._channels):
                self._names = self._channels
        if gap_s:
            yield from self.drain()
            yield from self._silence(round(gap_s * frame.sample_rate), is_lost=is_lost)
        self._planes.append(_samples(frame))
        self._samples += frame.samples
        if self._samples >= frame.sample_rate:
            yield from self.drain()

    def drain(self) -> Iterator[AudioBlock]:
        if self._planes:
            raw = np.concatenate(self._planes, axis=1)
            self._planes, self._samples = [], 0
            yield AudioBlock(_to_channels(raw, self._format[0], len(self._names)), self._format[2], self._names)

    def _silence(self, samples: int, *, is_lost: bool) -> Iterator[AudioBlock]:
        rate_hz = self._format[2]
        second: Samples = np.zeros((len(self._names), rate_hz), np.float32)
        for at in range(0, samples, rate_hz):
            yield AudioBlock(second[:, : samples - at], rate_hz, self._names, is_lost)


def _samples(frame: av.AudioFrame) -> NDArray[np.generic]:
    """Return the samples as libav has them. `AudioFrame.to_ndarray` reads beyond the last of eight or more planes."""
    channels = frame.layout.nb_channels
    planes, width = (channels, 1) if frame.format.is_planar else (1, channels)
    dtype = np.dtype(_DTYPES[frame.format.name.removesuffix("p")][0])
    raw = np.empty((planes, width * frame.samples), dtype)
    for place in range(planes):
        raw[place] = np.frombuffer(memoryview(AudioPlane(frame, place)), dtype, raw.shape[1])
    return raw


def _to_channels(raw: NDArray[np.generic], name: str, channels: int) -> Samples:
    """Convert planar (channels, n) or packed (1, n * channels) samples to (channels, n) float32, full scale 1."""
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


def _refuse_to_open(url: str, flags: int, options: dict[str, str]) -> object:
    raise PermissionError("a file may not open another")


_WARM_UP_RATE_HZ = 48_000
_COUNT_SLACK_S = 1.0  # packets include the encoder's delay and padding, which decoding removes


def run(message: bytes, source_fd: int, out_fd: int) -> None:
    """Enter the sandbox and decode the file."""
    request = DecodeRequest(**json.loads(message))
    sandbox.lock(request.memory_bytes, request.cpu_s)
    _send(out_fd, started=True)
    try:
        outcome = decode(request, source_fd, out_fd)
    except DecodeError as error:
        _send(out_fd, outcome=error.outcome, source=(error.container, error.codec, 0))
    except Exception:  # whatever libav, numpy or the memory limit raise here, this file cannot be decoded
        _send(out_fd, outcome=Outcome.INVALID_AUDIO)
    else:
        _send(out_fd, outcome=outcome)


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


def decode(request: DecodeRequest, source_fd: int, out_fd: int) -> Outcome:
    """Write the file's PCM frames to `out_fd` and return how it ended. Raises `DecodeError` and libav's errors.

    The duration that the headers claim is trusted until decoding passes it (not at all if it is missing or over the
    limit). Then the packets are counted before more is decoded, so that ten hours of silence in a megabyte are refused
    at once. A file that takes too much CPU time for its next block of audio ends the process.
    """
    sandbox.limit_cpu_from_now(request.first_cpu_s)
    demuxer, output = Demuxer(source_fd, request.file_bytes), _Output(out_fd, request)
    if demuxer.instead_of:
        _send(out_fd, source=(demuxer.name, demuxer.instead_of, demuxer.number))
    claimed_s = demuxer.claimed_s() or 0.0
    trusted_s = claimed_s if claimed_s <= request.max_audio_s else 0.0
    if trusted_s > 0:
        _send(out_fd, claim_s=trusted_s)
    max_samples = round(request.max_audio_s * request.rate_hz) + 1
    written = 0
    for block in demuxer.blocks():
        written += output.write(block)
        sandbox.limit_cpu_from_now(request.block_cpu_s)  # a new limit for each block: files may be long
        if written > max_samples:
            return Outcome.AUDIO_TOO_LONG
        if written > (trusted_s + _COUNT_SLACK_S) * request.rate_hz:
            trusted_s = float("inf")  # the packets are counted once
            if Demuxer(source_fd, request.file_bytes).is_longer_than(request.max_audio_s + _COUNT_SLACK_S):
                return Outcome.AUDIO_TOO_LONG
    written += output.flush()
    if written > max_samples:
        return Outcome.AUDIO_TOO_LONG
    if written < MIN_DURATION_S * request.rate_hz:
        if demuxer.damaged:
            raise DecodeError(Outcome.INVALID_AUDIO, demuxer.name, demuxer.codec)
        return Outcome.AUDIO_TOO_SHORT
    return Outcome.END


class _Output:
    """Writes the PCM frames. The first block sets the number of channels of the file."""

    def __init__(self, out_fd: int, request: DecodeRequest) -> None:
        self._out_fd, self._max_channels, self._rate_hz = out_fd, request.max_channels, request.rate_hz
        self._channels = 0  # unknown
        self._end_s = 0.0  # of what was written
        self._resampler = Resampler()

    def write(self, block: AudioBlock) -> int:
        """Write a block. Return how many samples of each channel were written."""
        if not self._channels:
            found = len(block.samples)
            self._channels = kept_channels(found, self._max_channels)
            self._resampler = Resampler(self._channels, self._rate_hz)
            if self._max_channels > 1:
                _send(self._out_fd, channels=found)
        begin_s, self._end_s = self._end_s, self._end_s + block.samples.shape[1] / block.rate_hz
        if block.is_lost:
            _send(self._out_fd, lost_s=(begin_s, self._end_s))
        return self._pcm(self._resampler.push(interleaved(block, self._channels), block.rate_hz))

    def flush(self) -> int:
        return self._pcm(self._resampler.flush())

    def _pcm(self, samples: Samples) -> int:
        """Send messages of at most `MAX_PCM_BYTES`, which hold whole samples of all channels."""
        if not samples.size:
            return 0
        payload = np.ascontiguousarray(samples).data.cast("B")
        step = MAX_PCM_BYTES - MAX_PCM_BYTES % (4 * self._channels)
        for at in range(0, len(payload), step):
            _send(self._out_fd, bytes(payload[at : at + step]))
        return len(samples)


def _send(fd: int, samples: bytes = b"", **note: Any) -> None:
    """Write a message. `note`: fields of `DecodeNote`."""
    rest = memoryview(messages.packed(note, samples))
    while rest:
        rest = rest[os.write(fd, rest) :]
