"""Frames of live sessions in Opus: each is one packet (RFC 6716), or a piece of an Ogg stream (RFC 7845)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from functools import partial

from asr_server.core.errors import DecoderUnavailable, InvalidInput, Overloaded
from asr_server.live.outbox import Decode
from asr_server.processes.worker_process import Work, WorkerClient, WorkerStream
from asr_server.server_feature import CoreParts, ServerFeature
from asr_server.services import FeatureParts

_MAX_STREAMS = 1_000  # a decoder takes about 100 kB
_MAX_FRAME_BYTES = 2 * 2**20  # more than 20 s at the highest rate of Opus, 510 kb/s

_WORK = Work("asr_server.features.live_opus.worker", "decodes Opus", DecoderUnavailable)


class OpusDecoder(WorkerClient):
    """Decodes the streams of all sessions. For one event loop."""

    def __init__(self, idle_timeout_s: float) -> None:
        super().__init__(_WORK, idle_timeout_s)
        self._streams = 0

    @asynccontextmanager
    async def stream(self, rate_hz: int) -> AsyncGenerator[Decode, None]:
        """Open a stream; the process forgets it when the block ends. Raises `DecoderUnavailable` and `Overloaded`.

        Yields a function that decodes the frames of the stream, one call at a time.
        """
        if self._streams == _MAX_STREAMS:
            raise Overloaded("Too many streams of Opus are open; try again later.")
        self._streams += 1
        try:
            with closing(await self.open()) as stream:
                yield partial(_decoded, stream, rate_hz)
        finally:
            self._streams -= 1


async def _decoded(stream: WorkerStream, rate_hz: int, data: bytes) -> bytes:
    """Return the decoded audio that is complete, as 16-bit little-endian PCM.

    Raises `DecoderUnavailable` if the process was lost, and `invalid_audio` if the data is not Opus.
    """
    if not data:
        return b""
    if len(data) <= _MAX_FRAME_BYTES:
        answer = await stream.request({"rate_hz": rate_hz}, data, is_live=True)
        if "error" not in answer.content:
            return answer.data
    raise InvalidInput(
        "The frames are not Opus: each is one packet, or they are the pieces of an Ogg stream, "
        "with at most 20 s of sound in a frame.",
        code="invalid_audio",
    )


def _build(core: CoreParts) -> FeatureParts:
    decoder = OpusDecoder(core.settings.idle_timeout)
    return FeatureParts(opus=decoder.stream, idle_owners=[decoder], close=decoder.close)


SERVER = ServerFeature(build=_build)
