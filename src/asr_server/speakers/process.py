"""The process that distinguishes speakers, as seen from the server."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import asdict, dataclass

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.audio.worker_process import Answer, WorkerProcess
from asr_server.core.audio import samples_to_s
from asr_server.core.errors import SpeakersUnavailable
from asr_server.speakers import model_source
from asr_server.speakers.wire import SpeakerRequest

# How long an answer may take; a process that takes longer hangs. An idle core takes 0.11 s for each second of sound,
# and at the end 0.0001 s for each second of the recording. The rest is for machines that other processes keep busy.
_PER_SOUND_S, _PER_RECORDING_S = 5.0, 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The work of a request, by which its time is limited."""

    samples: NDArray[np.float32] | None = None  # the next ones, float32 (n,)
    ends_s: float = 0.0  # how long the recording is that the request ends

    @property
    def most_s(self) -> float:
        """Return how long it may take."""
        sound_s = 0.0 if self.samples is None else samples_to_s(len(self.samples))
        return _PER_SOUND_S * sound_s + _PER_RECORDING_S * self.ends_s


class SpeakerProcess(WorkerProcess):
    module = "asr_server.speakers.worker"
    purpose = "tells speakers apart"
    unavailable = SpeakersUnavailable

    async def ask(self, request: SpeakerRequest, work: Work, *, is_live: bool) -> Answer:
        """The answer to one request. See `request`."""
        data = b"" if work.samples is None else np.ascontiguousarray(work.samples, np.float32).tobytes()
        answer = await self.request(asdict(request), data, is_live=is_live, work_s=work.most_s)
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
