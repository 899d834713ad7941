"""Finds the speakers of a live session, next to recognition, which never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, SpeakersUnavailable
from asr_server.features.speakers.diarization.live_speakers import LiveSpeakers, LiveSpeakerSource
from asr_server.features.speakers.diarization.turns import VoicePrint
from asr_server.features.speakers.live_labels import SpeakerLabels, SpeakersLost, UtteranceSpeakers
from asr_server.features.speakers.voices import NamedVoice
from asr_server.live.machine.events import Samples

# The least that is given at once, since each call has its cost.
_PUSH_SAMPLES = SAMPLE_RATE // 2
# The most that may wait, about 2 MB. Beyond it the analysis is too late to be of use, and is given up.
MAX_WAITING_SAMPLES = 30 * SAMPLE_RATE


class SessionSpeakers:
    """Of one session. `send`: gets changes of labels that were sent, and once why there are no more, if that happens.

    `labels`: gets the texts of the session, and says whose they are. `voices`: reads those that have names; None where
    none can be stored.
    """

    def __init__(
        self,
        source: LiveSpeakerSource,
        labels: SpeakerLabels,
        send: Callable[[UtteranceSpeakers | SpeakersLost], None],
        voices: Callable[[], Awaitable[Sequence[NamedVoice]]] | None = None,
    ) -> None:
        self._voices = voices
        self._send = send
        self.labels = labels
        self.lost = False
        self._waiting: list[Samples] = []
        self._waiting_samples = 0
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._run(source))

    def hear(self, samples: Samples) -> None:
        """The next audio, mono at 16 kHz."""
        if self.lost:
            return
        self._waiting.append(samples)
        self._waiting_samples += len(samples)
        if self._waiting_samples > MAX_WAITING_SAMPLES:
            self.close()
            self._lose("the server is too busy to follow this session.")
        elif self._waiting_samples >= _PUSH_SAMPLES:
            self._enough.set()

    def close(self) -> None:
        """End the analysis. Nothing is reported any more."""
        self._task.cancel()

    async def _run(self, source: LiveSpeakerSource) -> None:
        try:
            await self._listen(source)
        except AsrError as error:
            self._lose(error.message)
        except Exception as error:  # the words of the session do not depend on it
            logger.opt(exception=error).error("live speakers failed")
            self._lose("the server failed; the log has the details.")

    async def _listen(self, source: LiveSpeakerSource) -> None:
        speakers = await source.live()
        try:
            while True:
                await self._enough.wait()
                await self._push(speakers)
        finally:
            with suppress(AsrError):
                await speakers.close()

    async def _push(self, speakers: LiveSpeakers) -> None:
        audio = np.concatenate(self._waiting)
        self._waiting.clear()
        self._waiting_samples = 0
        self._enough.clear()
        settled_ms, voice_prints = speakers.settled_ms, speakers.voice_prints
        changed = await speakers.push(audio)
        is_new_voice = speakers.voice_prints is not voice_prints
        if is_new_voice:
            await self._recognise(speakers.voice_prints)
        if changed or is_new_voice or speakers.settled_ms != settled_ms:
            for update in self.labels.on_turns(changed, speakers.settled_ms):
                self._send(update)

    async def _recognise(self, voice_prints: Mapping[int, VoicePrint]) -> None:
        if self._voices is None:
            return
        try:
            voices = await self._voices()
        except SpeakersUnavailable as error:  # everybody keeps the name or letter that they have
            logger.warning("live speakers are not recognised", reason=error.message)
        else:
            self.labels.recognise(voice_prints, voices)

    def _lose(self, reason: str) -> None:
        self.lost = True
        self._waiting.clear()
        self._waiting_samples = 0
        self._send(SpeakersLost(f"Speakers are not told apart any more: {reason}"))
        for update in self.labels.lose():
            self._send(update)
