"""The server's side of a child's pipe: whole frames within a time budget. Closing the pipe kills the child."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from types import TracebackType

from asr_server.audio.decoder_wire import CHANNELS, CLAIM, HEADER, MAX_PCM_BYTES, FrameType
from asr_server.audio.limits import FileLimits

_PIPE_BYTES = (
    262_144  # 4 s of audio: the child never waits for the reader of a short clip; 64 KiB, the default, costs wake-ups
)
_STEP_S = 0.5
_KINDS = {int(kind): kind for kind in FrameType}
_EXACT_BYTES = {FrameType.CLAIM: CLAIM.size, FrameType.CHANNELS: CHANNELS.size}


class IncompleteReply(Exception):
    """The pipe ended without an outcome, or does not follow the protocol."""


class FrameReader:
    """The frames of one decode. A context manager that owns both ends of the pipe.

    The child gets a duplicate of `write_fd`. `close_write_end` then closes the server's own copy: only when no copy is
    left in another process does the pipe report its end. When the read end is closed, the fork server sees an error
    on its copy of the write end and kills the child.
    """

    def __init__(self, limits: FileLimits) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        with contextlib.suppress(OSError):  # over the user's quota for pipes: the default size works too
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._left_s = limits.timeout_s
        self._next_s, self._block_s = limits.first_timeout_s, limits.block_timeout_s

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_write_end()
        os.close(self._read_fd)

    def close_write_end(self) -> None:
        """Close the server's copy; the pipe then ends when the child does. Harmless if done before."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    async def has_more(self, within_s: float, is_vain: Callable[[], bool]) -> bool:
        """True if the next frame begins, or the pipe ends, within that time, and before `is_vain` says that none will.

        The time is counted in steps, so that a pause of the whole machine or of this process is not taken for one of
        the child.
        """
        for _ in range(max(1, round(within_s / _STEP_S))):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP_S):
                    await _readable(self._read_fd)
                    return True
            if is_vain():
                break
        return False

    async def next(self) -> tuple[FrameType, bytearray]:
        """Return the next frame: its kind and payload (PCM, CLAIM and CHANNELS: as `wire` says).

        Raises `TimeoutError` once the wait for this block, or all waits for this file, take longer than the limits
        allow, and `IncompleteReply`. Time between two calls does not count.
        """
        started_s = time.monotonic()
        async with asyncio.timeout(max(0.0, min(self._next_s, self._left_s))):
            number, size = HEADER.unpack(await self._exactly(HEADER.size))
            kind = _KINDS.get(number)
            is_pcm = kind is FrameType.PCM and size <= MAX_PCM_BYTES and size % 4 == 0
            if kind is None or not (is_pcm or size == _EXACT_BYTES.get(kind, 0)):
                raise IncompleteReply
            payload = await self._exactly(size)
        self._left_s -= time.monotonic() - started_s
        if kind is FrameType.PCM:
            self._next_s = self._block_s
        return kind, payload

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
        loop.remove_reader(fd)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
