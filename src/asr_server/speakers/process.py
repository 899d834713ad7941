"""The process that tells speakers apart, as seen from the server."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import asdict

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.audio.worker_process import Answer, WorkerProcess
from asr_server.core.errors import SpeakersUnavailable
from asr_server.speakers import model_source
from asr_server.speakers.wire import SpeakerRequest


class SpeakerProcess(WorkerProcess):
    """It raises `SpeakersUnavailable`."""

    module = "asr_server.speakers.worker"
    purpose = "tells speakers apart"
    unavailable = SpeakersUnavailable

    async def ask(
        self, request: SpeakerRequest, samples: NDArray[np.float32] | None = None, *, is_live: bool
    ) -> Answer:
        """The answer to one request. See `request`."""
        data = b"" if samples is None else np.ascontiguousarray(samples, np.float32).tobytes()
        answer = await self.request(asdict(request), data, is_live=is_live)
        if reason := answer.content.get("unusable"):
            logger.error("the models that tell speakers apart cannot be loaded", reason=reason)
            await self.end()
            raise SpeakersUnavailable(f"SPEAKERS: {reason}.")
        if "error" in answer.content:
            logger.error("a recording's speakers cannot be told apart", error=answer.content["error"])
            raise SpeakersUnavailable("The speakers of this recording cannot be told apart.")
        return answer


async def started(source: str) -> SpeakerProcess:
    """`source`: see `model_source`. Raises `SpeakersUnavailable`."""
    return await SpeakerProcess.start(await asyncio.wrap_future(_locating(source)))


def _locating(source: str) -> Future[str]:
    """`model_source.located` on a thread that does not keep the server from ending."""
    located: Future[str] = Future()

    def run() -> None:
        located.set_running_or_notify_cancel()
        try:
            located.set_result(model_source.located(source))
        except BaseException as error:
            located.set_exception(error)

    threading.Thread(target=run, name="speakers-locate", daemon=True).start()
    return located
