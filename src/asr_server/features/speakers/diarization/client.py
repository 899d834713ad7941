"""The speakers of recordings and live sessions, distinguished in a process that is started when it is needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.idle import IdleTimer
from asr_server.features.speakers.diarization import model_source, wire
from asr_server.features.speakers.diarization.model_source import EMBEDDED, VOICE_MODEL
from asr_server.features.speakers.diarization.turns import Diarization, LiveSpeakers, SpeakerCount, Turn, VoicePrint
from asr_server.features.speakers.diarization.wire import Action, SpeakerRequest
from asr_server.processes.messages import Message
from asr_server.processes.worker_process import WorkerClient, WorkerProcess

if TYPE_CHECKING:
    from asr_server.features.speakers.diarization.models import Samples

_BLOCK_SAMPLES = 32_000
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
    module = "asr_server.features.speakers.diarization.worker"
    purpose = "tells speakers apart"
    unavailable = SpeakersUnavailable

    async def ask(self, request: SpeakerRequest, work: Work, *, is_live: bool) -> Message:
        """Return the answer to one request. See `request`."""
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
    """Start a process. `source`: see `model_source`. Raises `SpeakersUnavailable`."""
    return await SpeakerProcess.start(await asyncio.wrap_future(_locating(source)))


def _locating(source: str) -> Future[str]:
    """Run `model_source.located` on a thread that does not keep the server from ending."""
    located: Future[str] = Future()

    def run() -> None:
        located.set_running_or_notify_cancel()
        try:
            located.set_result(model_source.located(source))
        except BaseException as error:
            located.set_exception(error)

    threading.Thread(target=run, name="speakers-locate", daemon=True).start()
    return located


class SpeakerClient(WorkerClient[SpeakerProcess]):
    """Finds the speakers of many recordings at the same time. For one event loop.

    `source` names the models (see `model_source`). Every method raises `SpeakersUnavailable` if the process was lost:
    the recording's analysis is lost with it, and the next one starts another process.
    """

    def __init__(self, source: str, *, idle_timeout_s: float = 0.0) -> None:
        super().__init__(idle_timeout_s)
        self._source = source

    @property
    def voice_model(self) -> str:
        """Return the name of the model that makes the voice prints. Prints of different models cannot be compared."""
        return VOICE_MODEL if self._source == EMBEDDED else self._source

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[RecordingDiarization, None]:
        """Begin a recording; the process forgets it when the block ends."""
        analysis = await self._begun(is_live=False)
        try:
            yield RecordingDiarization(analysis)
        finally:
            analysis.close()

    def check_live(self) -> None:
        """Do nothing: live speakers can be distinguished."""

    async def live(self) -> LiveSpeakers:
        """Begin a session, which lasts until it is closed."""
        return _LiveSpeakers(await self._begun(is_live=True))

    async def diarize(self, samples: Samples, count: SpeakerCount | None = None) -> Diarization:
        """Find the speakers of a short recording: (n,) float32, mono, 16 kHz."""
        async with self.recording() as recording:
            await recording.push(samples)
            return await recording.finish(count or SpeakerCount())

    async def _start(self) -> SpeakerProcess:
        return await started(self._source)

    async def _begun(self, *, is_live: bool) -> _Analysis:
        analysis = _Analysis(await self._running(), next(self._numbers), self.idle, is_live=is_live)
        try:
            await analysis.ask("start", live=is_live)
        except BaseException:
            analysis.close()
            raise
        return analysis


class _Analysis:
    """A recording or live session that the process knows."""

    def __init__(self, process: SpeakerProcess, number: int, idle: IdleTimer, *, is_live: bool) -> None:
        self._process = process
        self._number = number
        self._idle = idle
        self._is_live = is_live
        self._heard_s = 0.0
        self._closed = False
        idle.hold()

    async def ask(self, action: Action, samples: Samples | None = None, **fields: Any) -> Message:
        request = SpeakerRequest(action, self._number, **fields)
        self._heard_s += 0.0 if samples is None else samples_to_s(len(samples))
        work = Work(samples, self._heard_s if action == "finish" else 0.0)
        return await self._process.ask(request, work, is_live=self._is_live)

    def close(self) -> None:
        """Have the process forget it. Waits for nothing, so that it also works in a task that is cancelled."""
        if not self._closed:
            self._closed = True
            self._process.drop(self._number)
            self._idle.release()


class _LiveSpeakers:
    """A live session. See `LiveSpeakers`."""

    def __init__(self, analysis: _Analysis) -> None:
        self.settled_ms = 0
        self.voice_prints: dict[int, VoicePrint] = {}
        self._analysis = analysis

    async def push(self, samples: Samples) -> tuple[Turn, ...]:
        changed: tuple[Turn, ...] = ()
        for block in _blocks(samples):
            answer = await self._analysis.ask("push", block)
            if newer := wire.turns(answer.content):
                changed = (*_until(self.settled_ms, changed), *newer)
            self.settled_ms = answer.content["settled_ms"]
            if (prints := wire.voice_prints(answer.content, answer.data)) is not None:
                self.voice_prints = prints
        return changed

    async def close(self) -> None:
        self._analysis.close()


class RecordingDiarization:
    """A recording whose speakers are distinguished."""

    def __init__(self, analysis: _Analysis) -> None:
        self._analysis = analysis

    async def push(self, samples: Samples) -> None:
        """Add the next samples: (n,) float32, mono, 16 kHz."""
        for block in _blocks(samples):
            await self._analysis.ask("push", block)

    async def finish(self, count: SpeakerCount) -> Diarization:
        """Return all turns. Nothing can be pushed afterwards."""
        answer = await self._analysis.ask("finish", at_least=count.at_least, at_most=count.at_most)
        return wire.diarization(answer.content, answer.data)


def _blocks(samples: Samples) -> Iterator[Samples]:
    """Return the samples in short blocks, so that requests of others need not wait long."""
    return (samples[begin : begin + _BLOCK_SAMPLES] for begin in range(0, len(samples), _BLOCK_SAMPLES))


def _until(time_ms: int, turns: tuple[Turn, ...]) -> Iterator[Turn]:
    """Yield the parts of turns before a time."""
    return (replace(turn, end_ms=min(turn.end_ms, time_ms)) for turn in turns if turn.start_ms < time_ms)
