"""The files of spoken answers, encoded in a process that is started when it is needed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from typing import Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import EncoderUnavailable, Overloaded
from asr_server.features.speech_output.encoding.formats import EncodingOptions, SpeechFormat
from asr_server.processes.worker_process import Work, WorkerClient, WorkerStream

# A request has at most a second of sound, so that others need not wait long.
_BLOCK_SAMPLES = SPEECH_RATE
# The most memory that a file takes in the process: the encoder, the filters, and the silence and the speech that wait.
# All files together stay below `_MEMORY_BYTES` of `worker`.
_FILE_MIB = dict.fromkeys(SpeechFormat, 2) | {SpeechFormat.FLAC: 9}
_MAX_MIB = 900


_WORK = Work("asr_server.features.speech_output.encoding.worker", "encodes audio", EncoderUnavailable)


class AudioEncoder(WorkerClient):
    """Encodes the files of many requests at the same time. For one event loop. `streams`: the files under way.

    Every method raises `EncoderUnavailable` if the process was lost: the files under way are lost with it, and the next
    file starts another process.
    """

    def __init__(self, *, idle_timeout_s: float = 0.0) -> None:
        super().__init__(_WORK, idle_timeout_s)
        self.streams = self._mib = 0

    @asynccontextmanager
    async def stream(self, options: EncodingOptions) -> AsyncGenerator[EncodedStream, None]:
        """Open a file; the process forgets it when the block ends.

        Raises `Overloaded` if there are 450 already, or 100 of FLAC.
        """
        mib = _FILE_MIB[options.format]
        if self._mib + mib > _MAX_MIB:
            raise Overloaded("Too many spoken answers are being encoded; try again later.")
        self._mib += mib
        self.streams += 1
        try:
            with closing(await self.open()) as opened:
                stream = EncodedStream(opened)
                await stream.ask("start", options=asdict(options))
                yield stream
        finally:
            self._mib -= mib
            self.streams -= 1


class EncodedStream:
    """A file under way. One call at a time.

    `samples` is the number of samples at `SPEECH_RATE` in the file: after decoding if that is exact (PCM, WAV, FLAC),
    otherwise before encoding. It is complete after `finish`.
    """

    def __init__(self, opened: WorkerStream) -> None:
        self.samples = 0
        self._opened = opened

    async def push(self, samples: NDArray[np.float32], *, ends_sentence: bool = False) -> bytes:
        """Return the bytes of the file that are ready. `samples`: float32 (n,), mono, `SPEECH_RATE`, clipped to
        [-1, 1].

        Raises `EncoderUnavailable`, also if a sample is not finite. Nothing can be pushed afterwards.
        """
        ready = bytearray()
        for begin in range(0, max(1, len(samples)), _BLOCK_SAMPLES):
            block = np.ascontiguousarray(samples[begin : begin + _BLOCK_SAMPLES], np.float32).tobytes()
            is_end = ends_sentence and begin + _BLOCK_SAMPLES >= len(samples)
            ready += await self.ask("push", block, ends_sentence=is_end)
        return bytes(ready)

    async def finish(self) -> bytes:
        """Return the rest. Nothing can be pushed afterwards."""
        return await self.ask("finish")

    async def ask(self, action: str, data: bytes = b"", **fields: Any) -> bytes:
        answer = await self._opened.request({"action": action, **fields}, data)
        if "error" in answer.content:
            logger.error("a spoken answer cannot be encoded", error=answer.content["error"])
            raise EncoderUnavailable("The audio of this answer cannot be encoded.")
        self.samples = answer.content.get("samples", self.samples)
        return answer.data
