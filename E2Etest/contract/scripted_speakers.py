"""A double of what tells speakers apart: the turns are scripted, as the words of the fake engine are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from asr_server.core.audio import samples_to_ms
from asr_server.core.errors import SpeakersUnavailable
from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization.conftest import ToneSpeakers
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount, Turn, VoicePrint


class ScriptedSpeakers(ToneSpeakers):
    """Takes the place of `SpeakerClient`. `turns`: speaker, start and end in seconds. `is_lost`: its process ends.

    The voice in every clip is that of speaker 0.
    """

    is_lost = False

    def __init__(self, turns: Sequence[tuple[int, float, float]]) -> None:
        self.turns = tuple(Turn(who, round(1000 * start), round(1000 * end)) for who, start, end in turns)

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[ScriptedRecording, None]:
        self.pid = 1
        yield ScriptedRecording(self)

    async def diarize(self, samples, count: SpeakerCount | None = None) -> Diarization:
        """A clip of a known speaker."""
        return Diarization((Turn(0, 0, samples_to_ms(len(samples))),), (_voice(0),))


class ScriptedRecording:
    """The turns as far as the recording goes, of no more people than there may be."""

    def __init__(self, script: ScriptedSpeakers) -> None:
        self._script = script
        self._samples = 0

    async def push(self, samples) -> None:
        self._samples += len(samples)

    async def finish(self, count: SpeakerCount) -> Diarization:
        if self._script.is_lost:
            raise SpeakersUnavailable("The process that tells speakers apart was lost; try again.")
        heard = [turn for turn in self._script.turns if turn.start_ms < samples_to_ms(self._samples)]
        turns = [Turn(min(turn.speaker, count.at_most - 1), turn.start_ms, turn.end_ms) for turn in heard]
        people = max((turn.speaker for turn in turns), default=-1) + 1
        return Diarization(tuple(turns), tuple(_voice(speaker) for speaker in range(people)))


def _voice(speaker: int) -> VoicePrint:
    return np.eye(MAX_SPEAKERS, dtype=np.float32)[speaker]
