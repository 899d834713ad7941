"""Any audio file to mono float32 at 16 kHz, under limits, in a child process; this side never looks at the bytes.

Formats, by content: WAV (also RF64 and W64), AIFF, AU, CAF, FLAC, MP3, AAC (ADTS), AMR, Ogg (Opus, Vorbis, FLAC,
Speex), and the first audio track of MP4, MOV, M4A, Matroska and WebM. See `track` for mixing, `resample` for the
filter, `sandbox` for limits.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from asr_server.audio.frames import BrokenAnswer, Frames
from asr_server.audio.launcher import ForkServer, ForkServerLost
from asr_server.audio.wire import CLAIM, DecodeFrame, DecodeRequest
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

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What one file may cost. `timeout_s` bounds both the CPU time and the time that we wait for samples."""

    max_audio_s: float
    timeout_s: float = 60.0
    memory_bytes: int = 512 * 1024 * 1024


@dataclass(slots=True)
class Progress:
    """How long a recording says it is, and how much of it was decoded, at 16 kHz. `claimed_s` is 0 if unknown, and it
    may be a lie, but never over the limit."""

    claimed_s: float = 0.0
    decoded_samples: int = 0

    @property
    def decoded_s(self) -> float:
        """The same in seconds."""
        return samples_to_s(self.decoded_samples)


class Source(Protocol):
    """What `BinaryIO`, temporary files and uploads have: a real descriptor, and a buffer to empty into it."""

    def fileno(self) -> int: ...

    def flush(self) -> None: ...


class Decoder:
    """Decodes files of many callers at once, one process each, at most one a CPU core. One event loop; no threads.

    Every failure is of the one file: `EmptyFile`, `InvalidAudio` (also if its decoder crashed or ran into a limit),
    `NoAudioTrack`, `AudioTooShort` (under 0.1 s), `AudioTooLong`. Only a decoder that cannot be run at all is ours:
    `EngineError`; and a disk that is too full for the file: `UploadsUnavailable`. Where a file is damaged, what lies
    before and after the damage is kept, if it is 0.1 s at least; without the gap, unless the container's own times
    show it.
    """

    def __init__(self, limits: DecodeLimits) -> None:
        self._limits = limits
        self._zygote = ForkServer()
        self._slots = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        self._running = 0
        self._closed = False
        self._idle_since_s = time.monotonic()
        self.decoded_s = 0.0  # seconds of audio of all files so far
        self.failures: Counter[str] = Counter()  # files that could not be decoded to their end, by error code

    async def decode(self, source: Source) -> Samples:
        """The whole file: (n,) float32, mono, 16 kHz, finite, |x| <= 1; a louder clip is scaled down by its peak.

        `source` is read from its start, wherever its position is, and its position stays.
        Cancelling kills the decode.
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
        """The same in blocks of at most 2 s as they are decoded, in bounded memory; full scale is 1 but may be passed.

        `progress` is kept up to date. Nothing is decoded ahead of a slow reader beyond a pipe's worth, and its time
        does not count; it holds a process meanwhile, but none of the slots, so the caller bounds the number of streams.
        Close it (`aclosing`) to stop early. Errors come when they are met: blocks may have been given out before.
        """
        async with aclosing(self._blocks(source, progress or Progress())) as blocks:
            async for block in blocks:
                yield np.nan_to_num(np.frombuffer(block, np.float32))

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the decoders' parent, for health pages; None before the first file and when ended."""
        return self._zygote.pid

    async def close_idle(self, idle_s: float) -> bool:
        """End the child process if no file was decoded for that long, and say so; the next file starts it anew."""
        if self._running or not self._zygote.alive() or time.monotonic() - self._idle_since_s < idle_s:
            return False
        await self._zygote.close()
        return True

    async def close(self) -> None:
        """End the child process for good; decodes that still run, and later ones, raise `ShuttingDown`."""
        self._closed = True
        await self._zygote.close()

    async def _blocks(self, source: Source, progress: Progress) -> AsyncGenerator[bytearray, None]:
        """The PCM of one file, and what became of it in the figures."""
        try:
            async with aclosing(self._started(source, progress)) as blocks:
                async for block in blocks:
                    self.decoded_s += len(block) / (4 * SAMPLE_RATE)
                    yield block
        except AsrError as error:
            self.failures[error.code] += 1
            raise

    async def _started(self, source: Source, progress: Progress) -> AsyncGenerator[bytearray, None]:
        """PCM frames of one file as they come; started anew once if the zygote dies before the first."""
        job = self._job(source)
        self._running += 1
        given = attempts = 0
        try:
            while True:
                attempts += 1
                try:
                    async with aclosing(self._attempt(job, source.fileno(), progress)) as blocks:
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
            self._running -= 1
            self._idle_since_s = time.monotonic()

    async def _attempt(self, job: DecodeRequest, source_fd: int, progress: Progress) -> AsyncGenerator[bytearray, None]:
        with Frames(self._limits.timeout_s) as frames:
            async with self._slots:
                process = await self._zygote.send(job, source_fd, frames.write_fd)
            frames.close_write_end()
            while True:
                try:
                    # A slot a block: what waits for a slow reader keeps nobody from decoding.
                    async with self._slots:
                        kind, payload = await frames.next()
                except TimeoutError:
                    raise InvalidAudio("The file takes too long to decode.", param="file") from None
                except BrokenAnswer:
                    if await self._zygote.has_died(process):
                        raise ForkServerLost from None
                    raise _refusal(DecodeFrame.INVALID_AUDIO, job) from None
                if kind is DecodeFrame.END:
                    return
                if kind is DecodeFrame.CLAIM:
                    progress.claimed_s = CLAIM.unpack(payload)[0]
                    continue
                if kind is not DecodeFrame.PCM:
                    raise _refusal(kind, job)
                yield payload

    def _job(self, source: Source) -> DecodeRequest:
        if self._closed:
            raise ShuttingDown("The server is stopping.")
        try:
            source_fd = source.fileno()  # first: a spooled upload moves to disk here, and so into a buffer
            source.flush()
        except OSError as error:
            raise UploadsUnavailable(f"The upload cannot be put on the disk ({error.strerror}).") from error
        file_bytes = os.fstat(source_fd).st_size
        if not file_bytes:
            raise EmptyFile("The file is empty.", param="file")
        return DecodeRequest(
            file_bytes, self._limits.max_audio_s, int(self._limits.timeout_s) + 1, self._limits.memory_bytes
        )


def _refusal(kind: DecodeFrame, job: DecodeRequest) -> AsrError:
    if kind is DecodeFrame.NO_AUDIO_TRACK:
        return NoAudioTrack("The file has no audio track.", param="file")
    if kind is DecodeFrame.AUDIO_TOO_SHORT:
        return AudioTooShort("The audio is shorter than 0.1 s.", param="file")
    if kind is DecodeFrame.AUDIO_TOO_LONG:
        return AudioTooLong(f"The audio is longer than {job.max_audio_s:g} s.", param="file")
    return InvalidAudio("The file is not audio in a supported format, or it is damaged.", param="file")
