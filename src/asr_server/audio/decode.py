"""Any audio file to mono float32 at 16 kHz, under limits, in a child process. This process reads no byte of the file.

Formats, by content: WAV (also RF64 and W64), AIFF, AU, CAF, FLAC, MP3, AAC (ADTS), AMR, Ogg (Opus, Vorbis, FLAC,
Speex), and the first audio track of MP4, MOV, M4A, Matroska and WebM. See `demuxer` for the mixing of channels,
`resample` for the filter, `sandbox` for the limits.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asr_server.audio.frame_reader import FrameReader, IncompleteReply
from asr_server.audio.launcher import ForkServer, ForkServerLost
from asr_server.audio.wire import CLAIM, DecodeRequest, FrameType
from asr_server.core.audio import SAMPLE_RATE, samples_to_s
from asr_server.core.errors import (
    AsrError,
    AudioTooLong,
    AudioTooShort,
    EmptyFile,
    EngineError,
    InvalidAudio,
    NoAudioTrack,
    ShuttingDown,
    UploadsUnavailable,
)
from asr_server.core.idle import IdleTimer
from asr_server.core.temporary import restore_directory

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What one file may use. `timeout_s` bounds both the CPU time and the time that the server waits for samples."""

    max_audio_s: float
    timeout_s: float = 60.0
    memory_bytes: int = 512 * 1024 * 1024


@dataclass(slots=True)
class Progress:
    """How long a recording claims to be, and how much of it was decoded, at 16 kHz.

    `claimed_s` is 0 if unknown; it may be wrong, but is never over the limit.
    """

    claimed_s: float = 0.0
    decoded_samples: int = 0

    @property
    def decoded_s(self) -> float:
        return samples_to_s(self.decoded_samples)


class Source(Protocol):
    """What `BinaryIO`, temporary files and uploads have: a real descriptor, and a buffer that is flushed into it."""

    def fileno(self) -> int: ...

    def flush(self) -> None: ...


class Decoder:
    """Decodes files of many callers at once, one process each, at most one a CPU core. For one event loop.

    A failure concerns one file: `EmptyFile`, `InvalidAudio` (also if its process crashed or exceeded a limit),
    `NoAudioTrack`, `AudioTooShort` (under 0.1 s), `AudioTooLong`. `EngineError` means that no decoder process can be
    run, `UploadsUnavailable` that the disk is too full for the file. Of a damaged file, the audio before and after the
    damage is kept, if it is at least 0.1 s; without the gap, unless the container's own times show it.
    """

    def __init__(self, limits: DecodeLimits, *, idle_timeout_s: float = 0.0) -> None:
        self._limits = limits
        self._fork_server = ForkServer()
        self._slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        self._closed = False
        self._idle = IdleTimer(idle_timeout_s)
        self.decoded_s = 0.0  # seconds of audio of all files so far
        self.failures: Counter[str] = Counter()  # files that could not be decoded to their end, by error code

    async def decode(self, source: Source) -> Samples:
        """The whole file: (n,) float32, mono, 16 kHz, finite, |x| <= 1; a louder clip is scaled down by its peak.

        `source` is read from its start, whatever its position, and its position does not change. Cancelling kills the
        process that decodes it.
        """
        pcm = bytearray()
        async with aclosing(self._blocks(source, Progress())) as blocks:
            async for block in blocks:
                pcm += block
        samples: Samples = np.frombuffer(pcm, np.float32)
        peak = max(float(samples.max()), -float(samples.min()))
        if not np.isfinite(peak):
            raise InvalidAudio("The file decodes to no finite samples.", param="file")
        if peak > 1.0:
            samples /= np.float32(peak)
            np.clip(samples, -1.0, 1.0, out=samples)  # the division may round to just above one
        return samples

    async def stream(self, source: Source, progress: Progress | None = None) -> AsyncGenerator[Samples, None]:
        """The same in blocks of at most 2 s, in bounded memory; full scale is 1, louder is possible.

        `progress` is kept up to date. At most a pipe's worth is decoded ahead of a slow reader, whose own time does not
        count against the limit. A stream keeps its process but no slot between blocks, so the caller must bound the
        number of streams. Close it (`aclosing`) to stop early. An error may come after some blocks.
        """
        async with aclosing(self._blocks(source, progress or Progress())) as blocks:
            async for block in blocks:
                yield np.nan_to_num(np.frombuffer(block, np.float32))

    @property
    def fork_server_pid(self) -> int | None:
        """Process id of the fork server; None before the first file and after its end."""
        return self._fork_server.pid

    async def close_idle(self) -> bool:
        """End the fork server if no file was decoded for `idle_timeout_s`, and return whether it was ended."""
        if not (self._idle.expired and self._fork_server.alive()):
            return False
        await self._fork_server.close()
        return True

    async def close(self) -> None:
        """End the fork server for good; decodes that still run, and later ones, raise `ShuttingDown`."""
        self._closed = True
        await self._fork_server.close()

    async def _blocks(self, source: Source, progress: Progress) -> AsyncGenerator[bytearray, None]:
        """The PCM of one file; counts its audio and its failure."""
        try:
            async with aclosing(self._retried(source, progress)) as blocks:
                async for block in blocks:
                    self.decoded_s += len(block) / (4 * SAMPLE_RATE)
                    yield block
        except AsrError as error:
            self.failures[error.code] += 1
            raise

    async def _retried(self, source: Source, progress: Progress) -> AsyncGenerator[bytearray, None]:
        """The PCM of one file as it comes; tried once more if the fork server dies before the first sample."""
        request = self._request(source)
        self._idle.hold()
        given = attempts = 0
        try:
            while True:
                attempts += 1
                try:
                    async with aclosing(self._attempt(request, source.fileno(), progress)) as blocks:
                        async for block in blocks:
                            given += 1
                            progress.decoded_samples += len(block) // 4
                            yield block
                    return
                except ForkServerLost as lost:
                    if self._closed:
                        raise ShuttingDown("The server is stopping.") from lost
                    if given or attempts > 1:
                        raise EngineError("The audio decoder process died or does not start.") from lost
        finally:
            self._idle.release()

    async def _attempt(
        self, request: DecodeRequest, source_fd: int, progress: Progress
    ) -> AsyncGenerator[bytearray, None]:
        with FrameReader(self._limits.timeout_s) as frames:
            # Leaving this block for any reason closes the pipe, and with that the fork server kills the child.
            async with self._slots:
                process = await self._fork_server.send(request, source_fd, frames.write_fd)
            frames.close_write_end()
            while True:
                try:
                    # A slot for each block: a decode that waits for its slow reader keeps no other from running.
                    async with self._slots:
                        kind, payload = await frames.next()
                except TimeoutError:
                    raise InvalidAudio("The file takes too long to decode.", param="file") from None
                except IncompleteReply:
                    # The child of a dead fork server dies with it: then the file is not at fault.
                    if await self._fork_server.has_died(process):
                        raise ForkServerLost from None
                    raise _error(FrameType.INVALID_AUDIO, request) from None
                if kind is FrameType.END:
                    return
                if kind is FrameType.CLAIM:
                    progress.claimed_s = CLAIM.unpack(payload)[0]
                    continue
                if kind is not FrameType.PCM:
                    raise _error(kind, request)
                yield payload

    def _request(self, source: Source) -> DecodeRequest:
        if self._closed:
            raise ShuttingDown("The server is stopping.")
        restore_directory()
        try:
            source_fd = source.fileno()  # before the flush: a spooled upload moves to disk here, and so into a buffer
            source.flush()
        except OSError as error:
            raise UploadsUnavailable(f"The upload cannot be put on the disk ({error.strerror}).") from None
        file_bytes = os.fstat(source_fd).st_size
        if not file_bytes:
            raise EmptyFile("The file is empty.", param="file")
        return DecodeRequest(
            file_bytes, self._limits.max_audio_s, int(self._limits.timeout_s) + 1, self._limits.memory_bytes
        )


def _error(kind: FrameType, request: DecodeRequest) -> AsrError:
    if kind is FrameType.NO_AUDIO_TRACK:
        return NoAudioTrack("The file has no audio track.", param="file")
    if kind is FrameType.AUDIO_TOO_SHORT:
        return AudioTooShort("The audio is shorter than 0.1 s.", param="file")
    if kind is FrameType.AUDIO_TOO_LONG:
        return AudioTooLong(f"The audio is longer than {request.max_audio_s:g} s.", param="file")
    return InvalidAudio("The file is not audio in a supported format, or it is damaged.", param="file")


def ffmpeg_version() -> str:
    """The FFmpeg that PyAV contains. Raises `ImportError` where it cannot be loaded."""
    import av

    return str(av.ffmpeg_version_info)
