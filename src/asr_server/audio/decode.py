"""Decodes any audio file to float32 in a child process, under limits, at 16 kHz unless a caller asks for another rate.
This process reads no byte of the file, unless it is a short WAV whose samples need no decoding.

`sniff.DEMUXERS` lists the containers and `decoder_child.DECODERS` the codecs. See `resample` for the mixing of
channels and the filter, `sandbox` for the limits. `FrameReader` is the server's side of the child's pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import math
import os
import re
import struct
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter
from pydantic import TypeAdapter

from asr_server.audio.decoder_wire import (
    MAX_CHANNELS,
    MAX_PCM_BYTES,
    MIN_DURATION_S,
    DecodeLimits,
    DecodeNote,
    DecodeRequest,
    Outcome,
    kept_channels,
)
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE, samples_to_s
from asr_server.core.environment import restore_directory
from asr_server.core.errors import AsrError, DecoderUnavailable, InvalidInput, ShuttingDown
from asr_server.core.idle import IdleTimer
from asr_server.processes import messages
from asr_server.processes.caller_work import FairShares
from asr_server.processes.launcher import ForkServer, ForkServerLost, is_stopped

# Short WAV files of mono 16-bit PCM at 16 kHz, which many clients send, need no decoder: their samples lie in the file
# as they are. No library reads these bytes, every loop is bounded, and anything unusual is left to the decoder's child
# process: another format, an unknown chunk, a wrong size.
MAX_PLAIN_BYTES = 1024 * 1024  # 32 s, read at once
_PLAIN_BLOCK_SAMPLES = 128 * FRAME_SAMPLES  # 4.1 s: one call of the network of voice detection
_MAX_CHUNKS = 8
_FORMAT = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)  # PCM, mono, 16 bits
_FORMATS = (_FORMAT, _FORMAT + bytes(2))  # the size of an extension may follow, 0 for PCM
_IGNORED = (b"LIST", b"JUNK", b"fact")  # texts, padding, and a number of samples that the data chunk states better


Source = BinaryIO  # with a real descriptor, and a buffer that is flushed into it


def read_plain_wav(source: Source) -> NDArray[np.int16] | None:
    """Return the samples of a whole file as int16 (n,), or None if the decoder has to read it.

    The position of the file does not change. Raises OSError.
    """
    before = source.tell()
    try:
        if source.seek(0, os.SEEK_END) > MAX_PLAIN_BYTES:
            return None
        source.seek(0)
        return plain_samples(source.read(MAX_PLAIN_BYTES))
    finally:
        source.seek(before)


def plain_samples(content: bytes) -> NDArray[np.int16] | None:
    """Return the samples in the content of a file, or None if the decoder has to read it."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        return None
    at, is_plain = 12, False
    for _ in range(_MAX_CHUNKS):
        name, size = content[at : at + 4], int.from_bytes(content[at + 4 : at + 8], "little")
        at, end = at + 8, at + 8 + size
        if name == b"data":
            is_whole = is_plain and size % 2 == 0 and end == len(content)
            return np.frombuffer(content, "<i2", size // 2, at) if is_whole else None
        if name == b"fmt " and not is_plain and content[at:end] in _FORMATS:
            is_plain = True
        elif name not in _IGNORED:
            return None
        at = end + size % 2
    return None


# 4 s of audio: the child never waits for the reader of a short clip; 64 KiB, the default, costs wake-ups.
_PIPE_BYTES = 262_144
_STEP_S = 0.5
# Other processes use the CPU too, and the disk may be slow.
WAIT_PER_CPU_S = 4.0
_MOST_BYTES = MAX_PCM_BYTES + 1024  # of a message
_notes = TypeAdapter(DecodeNote)
_MOST_NAME_CHARS = 32


class IncompleteReply(Exception):
    """The pipe ended without an outcome, or does not follow the protocol."""


class FrameReader(contextlib.AbstractContextManager["FrameReader"]):
    """The messages of one decode. A context manager that owns both ends of the pipe.

    The child gets a duplicate of `write_fd`. `close_write_end` then closes the server's own copy: the pipe reports its
    end only when no process has a copy left. When the read end is closed, the fork server sees an error on its copy of
    the write end and kills the child.
    """

    def __init__(self, request: DecodeRequest) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        with contextlib.suppress(OSError):  # over the user's quota for pipes: the default size works too
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._left_s = WAIT_PER_CPU_S * request.cpu_s
        self._next_s, self._block_s = WAIT_PER_CPU_S * request.first_cpu_s, WAIT_PER_CPU_S * request.block_cpu_s

    def __exit__(self, *raised: object) -> None:
        self.close_write_end()
        os.close(self._read_fd)

    def close_write_end(self) -> None:
        """Close the server's copy; the pipe then ends when the child does. Harmless if done before."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    async def has_more(self, within_s: float, is_vain: Callable[[], bool]) -> bool:
        """Return True once a message begins or the pipe ends; False after `within_s`, or once `is_vain` returns True.

        The time is counted in steps, so that a pause of the whole machine or of this process is not taken for a pause
        of the child.
        """
        for _ in range(max(1, round(within_s / _STEP_S))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP_S):
                    await _readable(self._read_fd)
                    return True
            if is_vain():
                break
        return False

    async def next(self) -> tuple[DecodeNote, bytearray]:
        """Return the next message and its samples.

        Raises `TimeoutError` once the wait for this block, or all waits for this file, take longer than the limits
        allow, and `IncompleteReply`. Time between two calls does not count.
        """
        started_s = time.monotonic()
        if self._left_s <= 0:
            raise TimeoutError
        async with asyncio.timeout(min(self._next_s, self._left_s)):
            try:
                note_bytes, sample_bytes = messages.sizes(await self._exactly(messages.HEADER.size), _MOST_BYTES)
                note = _notes.validate_json(await self._exactly(note_bytes))
            except ValueError:
                raise IncompleteReply from None
            samples = await self._exactly(sample_bytes)
        self._left_s -= time.monotonic() - started_s
        if samples:
            self._next_s = self._block_s
        else:
            await asyncio.sleep(0)  # reading a full pipe never waits, and a hostile child could fill it with notes
        return note, samples

    async def _exactly(self, size: int) -> bytearray:
        whole = bytearray(size)
        with memoryview(whole) as rest:
            at = 0
            while at < size:
                try:
                    count = os.readv(self._read_fd, [rest[at:]])
                except BlockingIOError:
                    await _readable(self._read_fd)
                    continue
                if not count:
                    raise IncompleteReply
                at += count
        return whole


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)  # before the descriptor is closed: else the loop watches the next file with its number


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():  # the waiter may have been cancelled in the same round of the loop
        ready.set_result(None)


Samples = NDArray[np.float32]

_SAME_S = 0.001  # lost parts with less than this between them are one
_MOST_LOST = 10_000  # the most lost parts of a file that are listed separately
# Attempts in a row without a new sample: the process that starts decoders may be lost more than once.
_ATTEMPTS = 3


@dataclass(slots=True)
class Progress:
    """The length that a recording claims, and the part of it that was decoded."""

    claimed_s: float = 0.0  # 0 if unknown; it may be wrong, but is never over the limit
    decoded_samples: int = 0  # of one channel
    file_channels: int = 1  # known from the first block on, if `max_channels` is over 1
    max_channels: int = 1  # how many are kept at most
    rate_hz: int = SAMPLE_RATE  # of the decoded samples; a caller may choose it
    is_complete: bool = False  # no block follows the present one; for most files known only at the end
    # [from, to) in seconds, in order: silence that stands for damaged packets
    lost_s: list[tuple[float, float]] = field(default_factory=list)
    container: str = ""  # its name, if it or its codec is not supported
    codec: str = ""  # that is not supported
    instead_track: int = 0  # that is decoded instead, 1 for the first; 0 for none

    @property
    def decoded_s(self) -> float:
        return self.decoded_samples / self.rate_hz

    @property
    def channels(self) -> int:  # of a block
        return kept_channels(self.file_channels, self.max_channels)

    @property
    def sample_bytes(self) -> int:  # of all channels
        return 4 * self.channels

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.instead_track:
            return ()
        return (f"sound in {self.codec} cannot be decoded: track {self.instead_track} is heard instead",)

    def take(self, note: DecodeNote) -> None:
        """Note a message of a child, which is not trusted: a file may have taken the child over."""
        if 0 < note.claim_s < math.inf:
            self.claimed_s = note.claim_s
        if note.channels and not self.decoded_samples:
            self.file_channels = max(1, note.channels)
        if any(note.source):
            container, codec, self.instead_track = note.source
            self.container, self.codec = (
                re.sub(r"[^\w (),-]", "", name[:_MOST_NAME_CHARS], flags=re.ASCII) for name in (container, codec)
            )
        self.note_lost(*note.lost_s)

    def note_lost(self, begin_s: float, end_s: float) -> None:
        """Note a part that stands for damaged packets. A part that an earlier attempt has noted, or an impossible one,
        is ignored."""
        first_s, last_s = self.lost_s[-1] if self.lost_s else (0.0, 0.0)
        if not last_s <= begin_s < end_s < math.inf:
            return
        # Parts come a second at a time. After `_MOST_LOST`, all that follow are merged, with what is between them.
        if self.lost_s and (begin_s - last_s < _SAME_S or len(self.lost_s) >= _MOST_LOST):
            self.lost_s[-1] = first_s, end_s
        else:
            self.lost_s.append((begin_s, end_s))


@dataclass(frozen=True, slots=True)
class _File:
    """A file to decode."""

    fd: int
    caller: str  # the one that the file counts for
    request: DecodeRequest


class Decoder:
    """Decodes files of many callers at once, one child process each. For one event loop.

    At most twice as many run at a time as there are CPU cores, and callers that already hold a slot may fill only half
    of them. A child that waits for its reader does not count. The sum of the children's memory limits is bounded, and
    with it their number. Slots and memory are shared fairly by `caller`, to whom a file belongs, and no caller ever
    uses up either (see `FairShares`).

    A failure concerns one file: `empty_file`, `invalid_audio` (also if its process crashed or exceeded a limit),
    `no_audio_track`, `audio_too_short` (under 0.1 s), `audio_too_long`. `DecoderUnavailable` means that no decoder
    process can be run, `uploads_unavailable` that the disk is too full for the file. The audio before and after damage
    in a file is kept, if it is at least 0.1 s. The gap is left out, unless the container's own times show it: then it
    is silence, which `Progress` reports.
    """

    def __init__(
        self, limits: DecodeLimits, *, idle_timeout_s: float = 0.0, registry: CollectorRegistry | None = None
    ) -> None:
        self._limits = limits
        self.fork_server = ForkServer("asr_server.audio.decoder_child")
        cores = len(os.sched_getaffinity(0))
        self.places = FairShares(cores, 2 * cores)
        self.memory = FairShares(limits.shared_memory_bytes, limits.memory_bytes)
        self._closed = False
        self.idle = IdleTimer(idle_timeout_s)
        self._decoded_audio = Counter("asr_decoded_audio_seconds_total", "Decoded audio.", registry=registry)
        self._failures = Counter(
            "asr_decoder_failures_total",
            "Files that could not be decoded completely.",
            ["code"],
            registry=registry,
        )

    async def stream(
        self, source: Source, progress: Progress | None = None, caller: str = ""
    ) -> AsyncGenerator[Samples, None]:
        """Decode a file in blocks of at most 4.1 s, in bounded memory: float32 (n,), mono, 16 kHz, finite. Full scale
        is 1, louder is possible.

        `source` is read from its start, whatever its position, and its position does not change. `progress` is kept up
        to date. At most a pipe's worth is decoded ahead of a slow reader, whose own time does not count against the
        limits. Close the generator (`aclosing`) to stop early. An error may come after some blocks.
        """
        progress = progress or Progress()
        try:
            async with aclosing(self._decoded(source, progress, caller)) as blocks:
                async for block in blocks:
                    samples = _finite(block)
                    self._decoded_audio.inc(len(samples) / (progress.channels * progress.rate_hz))
                    yield samples
        except AsrError as error:
            self._failures.labels(error.code).inc()
            raise

    async def stream_channels(
        self, source: Source, progress: Progress, caller: str = ""
    ) -> AsyncGenerator[Samples, None]:
        """Decode a file as `stream` does, with separate channels: (channels, n) float32. More than `MAX_CHANNELS` are
        mixed.

        `progress.file_channels` is how many the file has.
        """
        progress.max_channels = MAX_CHANNELS
        async with aclosing(self.stream(source, progress, caller)) as blocks:
            async for block in blocks:
                yield np.ascontiguousarray(block.reshape(-1, progress.channels).T)

    async def close_idle(self) -> None:
        await self.fork_server.close()

    async def close(self) -> None:
        """End the fork server for good; decodes that still run, and later ones, raise `ShuttingDown`."""
        self._closed = True
        await self.fork_server.close()

    async def _decoded(
        self, source: Source, progress: Progress, caller: str
    ) -> AsyncGenerator[bytearray | memoryview, None]:
        """Decode a file without counting it, in this process if the file needs no decoder."""
        if self._closed:
            raise ShuttingDown()
        async with self.memory.taken(caller, MAX_PLAIN_BYTES):
            samples = await self._plain(source) if progress.rate_hz == SAMPLE_RATE else None
            if samples is not None:
                progress.claimed_s = samples_to_s(len(samples))
                for at in range(0, len(samples), _PLAIN_BLOCK_SAMPLES):
                    block = samples[at : at + _PLAIN_BLOCK_SAMPLES] / np.float32(32_768)
                    progress.decoded_samples += len(block)
                    progress.is_complete = progress.decoded_samples == len(samples)
                    yield block.data.cast("B")
                return
        async with aclosing(self._retried(self._file(source, caller, progress), progress)) as blocks:
            async for pcm in blocks:
                yield pcm

    async def _plain(self, source: Source) -> NDArray[np.int16] | None:
        """Return the samples of a file that needs no decoder and has an allowed length, else None."""
        try:
            if getattr(source, "_rolled", True):  # it is not a `SpooledTemporaryFile` in memory
                samples = await asyncio.to_thread(read_plain_wav, source)  # it may lie on a slow disk
            else:
                samples = read_plain_wav(source)
        except OSError:
            return None
        is_allowed = samples is not None and MIN_DURATION_S <= samples_to_s(len(samples)) <= self._limits.max_audio_s
        return samples if is_allowed else None

    async def _retried(self, file: _File, progress: Progress) -> AsyncGenerator[bytearray, None]:
        """Yield the PCM of one file as it comes. If the fork server is lost, decode it again, and leave out the samples
        that were yielded before, which are the same each time."""
        self.idle.hold()
        attempts = 0
        try:
            async with self.memory.taken(file.caller, file.request.memory_bytes):
                while True:
                    attempts += 1
                    skipped_bytes = progress.sample_bytes * progress.decoded_samples
                    try:
                        async with aclosing(self._attempt(file, progress)) as blocks:
                            async for block in blocks:
                                left = block[skipped_bytes:]
                                skipped_bytes -= len(block) - len(left)
                                if left:
                                    attempts = 0
                                    progress.decoded_samples += len(left) // progress.sample_bytes
                                    yield left
                        return
                    except ForkServerLost as lost:
                        if self._closed:
                            raise ShuttingDown() from lost
                        if attempts == _ATTEMPTS:
                            raise DecoderUnavailable("The audio decoder was lost or does not start.") from None
        finally:
            self.idle.release()

    async def _attempt(self, file: _File, progress: Progress) -> AsyncGenerator[bytearray, None]:
        # Leaving this block for any reason closes the pipe, and with that the fork server kills the child.
        with FrameReader(file.request) as frames:
            # Hold a slot until the first block, and again for each later block: a decode that waits for a slow reader
            # blocks no other.
            async with self.places.taken(file.caller):
                process = await self._started(file, frames)
                block = await self._next(frames, process, progress)
            while block is not None:
                yield block
                async with self.places.taken(file.caller):
                    block = await self._next(frames, process, progress)

    async def _started(self, file: _File, frames: FrameReader) -> subprocess.Popen[bytes]:
        """Start a child for the file. Raises `ForkServerLost` if none starts; the file, still unread, is not at fault.

        The fork server passes requests on at once. If it does not, it is stopped or hangs, and is ended.
        """
        request = json.dumps(asdict(file.request)).encode()
        process = await self.fork_server.send(request, file.fd, frames.write_fd)
        frames.close_write_end()
        if not await frames.has_more(self.fork_server.answer_s, lambda: is_stopped(process.pid)):
            self.fork_server.end(process)
            raise ForkServerLost
        try:
            note, _ = await frames.next()
        except (TimeoutError, IncompleteReply):
            await self.fork_server.has_died(process)  # if it has, the next attempt starts another
            raise ForkServerLost from None
        if not note.started:
            raise ForkServerLost
        self.fork_server.answered(process)
        return process

    async def _next(
        self, frames: FrameReader, process: subprocess.Popen[bytes], progress: Progress
    ) -> bytearray | None:
        """Return the next block, or None at the end. Raises the file's error, or `ForkServerLost`."""
        while True:
            try:
                note, samples = await frames.next()
            except TimeoutError:
                raise InvalidInput("The file takes too long to decode.", code="invalid_audio", param="file") from None
            except IncompleteReply:
                # The child of a dead fork server dies with it: then the file is not at fault.
                if await self.fork_server.has_died(process):
                    raise ForkServerLost from None
                raise self._error(Outcome.INVALID_AUDIO, progress) from None
            progress.take(note)
            if note.outcome is Outcome.END:
                return None
            if note.outcome or len(samples) % progress.sample_bytes:
                raise self._error(note.outcome or Outcome.INVALID_AUDIO, progress)
            if samples:
                return samples

    def _file(self, source: Source, caller: str, progress: Progress) -> _File:
        restore_directory()
        try:
            source_fd = source.fileno()  # before the flush: a spooled upload moves to disk here, and so into a buffer
            source.flush()
        except OSError as error:
            raise AsrError(
                f"The upload cannot be put on the disk ({error.strerror}).", code="uploads_unavailable"
            ) from None
        file_bytes = os.fstat(source_fd).st_size
        if not file_bytes:
            raise InvalidInput("The file is empty.", code="empty_file", param="file")
        return _File(source_fd, caller, self._limits.of_file(file_bytes, progress.max_channels, progress.rate_hz))

    def _error(self, outcome: Outcome, progress: Progress) -> AsrError:
        what = progress.container and f" ({progress.container}{progress.codec and ', sound in '}{progress.codec})"
        reasons = {
            Outcome.NO_AUDIO_TRACK: "The file has no audio track.",
            Outcome.AUDIO_TOO_SHORT: "The audio is shorter than 0.1 s.",
            Outcome.AUDIO_TOO_LONG: f"The audio is longer than {self._limits.max_audio_s:g} s.",
            Outcome.INVALID_AUDIO: f"The file{what} is not audio in a supported format, or it is damaged.",
        }
        return InvalidInput(reasons[outcome], code=outcome, param="file")


def _finite(pcm: bytearray | memoryview) -> Samples:
    """Return the samples, in the same memory, with zeros for NaN and the largest numbers for infinity."""
    samples = np.frombuffer(pcm, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        is_finite = np.isfinite(samples.sum())  # true only if each sample is; checking each takes five times as long
    return samples if is_finite else np.nan_to_num(samples, copy=False)


def ffmpeg_version() -> str:
    """Return the version of FFmpeg in PyAV. Raises `ImportError` if PyAV cannot be loaded."""
    import av

    return str(av.ffmpeg_version_info)
