"""The client of the process that distinguishes the speakers of recordings and live sessions. It starts on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from loguru import logger

from asr_server.core.audio import samples_to_s
from asr_server.core.errors import SpeakersUnavailable
from asr_server.features.speakers.diarization import model_source, wire
from asr_server.features.speakers.diarization.model_source import EMBEDDED, VOICE_MODEL
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount, Turn, VoicePrint
from asr_server.features.speakers.diarization.wire import Action
from asr_server.processes.caller_work import in_background
from asr_server.processes.messages import Message
from asr_server.processes.worker_process import Work, WorkerClient, WorkerStream

if TYPE_CHECKING:
    from asr_server.features.speakers.diarization.models import Samples

_BLOCK_SAMPLES = 32_000
# A process hangs if an answer takes longer, per second of sound, and at the end per second of the recording. An idle
# core takes 0.11 s and 0.0001 s. The rest is for machines that other processes keep busy.
_PER_SOUND_S, _PER_RECORDING_S = 5.0, 0.01

_WORK = Work("asr_server.features.speakers.diarization.worker", "tells speakers apart", SpeakersUnavailable)


class SpeakerClient(WorkerClient):
    """Finds the speakers of many recordings at the same time. For one event loop.

    `source` names the models (see `model_source`). Every method raises `SpeakersUnavailable` if the process was lost:
    the recording's analysis is lost with it, and the next analysis starts another process.
    """

    def __init__(self, source: str, *, idle_timeout_s: float = 0.0) -> None:
        super().__init__(_WORK, idle_timeout_s)
        self._source = source

    @property
    def voice_model(self) -> str:
        """Return the name of the model that makes the voice prints. Prints of different models cannot be compared."""
        return VOICE_MODEL if self._source == EMBEDDED else self._source

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[RecordingDiarization, None]:
        """Begin a recording; the process forgets it when the block ends."""
        with closing(await self._begun(RecordingDiarization)) as analysis:
            yield analysis

    async def live(self) -> LiveSpeakers:
        """Begin a session, which lasts until it is closed."""
        return await self._begun(LiveSpeakers)

    async def diarize(self, samples: Samples, count: SpeakerCount | None = None) -> Diarization:
        """Find the speakers of a short recording: (n,) float32, mono, 16 kHz."""
        async with self.recording() as recording:
            await recording.push(samples)
            return await recording.finish(count or SpeakerCount())

    async def arguments(self) -> tuple[str]:
        located = in_background(partial(model_source.located, self._source), "speakers-locate")
        return (await asyncio.wrap_future(located),)

    async def _begun(self, kind: type[A]) -> A:
        analysis = kind(await self.open())
        try:
            await analysis.ask("start", live=kind.is_live)
        except BaseException:
            analysis.close()
            raise
        return analysis


class _Analysis:
    """A recording or live session that the process knows."""

    is_live: ClassVar[bool] = False

    def __init__(self, stream: WorkerStream) -> None:
        self._stream = stream
        self._heard_s = 0.0
        self.close = stream.close

    async def ask(self, action: Action, samples: Samples | None = None, **fields: Any) -> Message:
        data = b"" if samples is None else np.ascontiguousarray(samples, np.float32).tobytes()
        sound_s = 0.0 if samples is None else samples_to_s(len(samples))
        self._heard_s += sound_s
        work_s = _PER_SOUND_S * sound_s + (_PER_RECORDING_S * self._heard_s if action == "finish" else 0.0)
        answer = await self._stream.request({"action": action, **fields}, data, is_live=self.is_live, work_s=work_s)
        if reason := answer.content.get("unusable"):
            logger.error("the models that tell speakers apart cannot be loaded", reason=reason)
            await self._stream.process.end()
            raise SpeakersUnavailable(f"SPEAKERS: {reason}.")
        if "error" in answer.content:
            logger.error("a recording's speakers cannot be told apart", error=answer.content["error"])
            raise SpeakersUnavailable("The speakers of this recording cannot be told apart.")
        return answer


A = TypeVar("A", bound=_Analysis)


class LiveSpeakers(_Analysis):
    """The speakers of one live session, from its first sample on."""

    is_live = True
    settled_ms = 0  # the time of the session before which no turn changes any more
    # The voices of speakers who were heard for long enough. When one of them changes, a new mapping replaces this one.
    voice_prints: Mapping[int, VoicePrint] = MappingProxyType({})

    async def push(self, samples: Samples) -> tuple[Turn, ...]:
        """Add audio, mono at 16 kHz. Returns the turns that are new or have changed, in milliseconds of the session.

        They replace all earlier turns in their time.
        """
        changed: tuple[Turn, ...] = ()
        for block in _blocks(samples):
            answer = await self.ask("push", block)
            if newer := wire.turns(answer):
                end_ms = self.settled_ms
                before = (replace(turn, end_ms=min(turn.end_ms, end_ms)) for turn in changed if turn.start_ms < end_ms)
                changed = (*before, *newer)
            self.settled_ms = answer.content["settled_ms"]
            if (prints := wire.voices(answer)) is not None:
                self.voice_prints = prints
        return changed


class RecordingDiarization(_Analysis):
    """A recording whose speakers are distinguished."""

    async def push(self, samples: Samples) -> None:
        for block in _blocks(samples):
            await self.ask("push", block)

    async def finish(self, count: SpeakerCount) -> Diarization:
        """Return all turns. Nothing can be pushed afterwards."""
        answer = await self.ask("finish", at_least=count.at_least, at_most=count.at_most)
        return Diarization(wire.turns(answer), tuple((wire.voices(answer) or {}).values()))


def _blocks(samples: Samples) -> Iterator[Samples]:
    """Return the samples in short blocks, so that requests of others need not wait long."""
    return (samples[begin : begin + _BLOCK_SAMPLES] for begin in range(0, len(samples), _BLOCK_SAMPLES))
