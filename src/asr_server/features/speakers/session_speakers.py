"""Finds the speakers of a live session, in parallel with recognition, which never waits for them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, InvalidInput, SpeakersUnavailable
from asr_server.features.speakers.diarization.turns import VoicePrint
from asr_server.features.speakers.live_labels import SpeakerLabels, UtteranceSpeakers
from asr_server.features.speakers.voices import NamedVoice, VoiceStore
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import Final, Partial, ResetDone, Samples
from asr_server.live.machine.utterance import Frame
from asr_server.live.outbox import CHARACTER_BYTES, MESSAGE_BYTES, MakePart, Outgoing, PartMessage, SessionPart

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.features.speakers.diarization.client import LiveSpeakers, SpeakerClient
    from asr_server.live.actions import Query
    from asr_server.net.access import Caller

Json = dict[str, Any]

# The least audio that is analysed at once, since each call has its cost.
_PUSH_SAMPLES = SAMPLE_RATE // 2
# The most audio that may wait, about 2 MB. Beyond that, the analysis is too late to be of use and is given up.
MAX_WAITING_SAMPLES = 30 * SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class SpeakersLost(PartMessage):
    """Speakers are not told apart any more."""

    message: str  # the reason, for people

    def wire(self) -> Json:
        return {"status": "speakers_unavailable", "message": self.message}

    @property
    def size_bytes(self) -> int:
        return MESSAGE_BYTES + CHARACTER_BYTES * len(self.message)


def read_opening(source: SpeakerClient | None, voices: VoiceStore, socket: WebSocket, query: Query) -> MakePart | None:
    """Return the factory of a new session's speakers, or None if the session does not request them.

    Raises `unsupported_value` if the server does not distinguish speakers: then `source` is None.
    """
    if not query.speakers or query.session_id:
        return None
    if source is None:
        raise InvalidInput("This server does not distinguish speakers.", code="unsupported_value", param="speakers")
    caller: Caller = socket.state.caller
    comparable = functools.partial(asyncio.to_thread, voices.comparable, caller.owner, source.voice_model)
    return lambda session_id, send: SessionSpeakers(source, comparable, send)


class SessionSpeakers(SessionPart):
    """The speakers of one session."""

    def __init__(
        self,
        source: SpeakerClient,
        voices: Callable[[], Awaitable[Sequence[NamedVoice]]],
        send: Callable[[UtteranceSpeakers | SpeakersLost], None],
    ) -> None:
        """`voices` reads the named voices. `send` gets changes of labels that were sent before. If speakers are lost,
        it also gets the reason, once."""
        self._voices = voices
        self._send = send
        self.labels = SpeakerLabels()
        self._waiting: list[Samples] = []
        self._waiting_samples = 0
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._run(source))

    def hello(self) -> Json:
        return {"speakers": not self.labels.lost}

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return the message, with speakers if it is a text or words."""
        match outgoing.message:
            case Partial() | Final() as text:
                return replace(outgoing, details=self.labels.on_text(text))
            case WordTimestamps() as words:
                return replace(outgoing, message=self.labels.on_words(words))
            case ResetDone(utterance=int(discarded)):
                self.labels.discard(discarded)
        return outgoing

    def on_frame(self, frame: Frame) -> None:
        """Take the next audio. If too much waits, speakers are not told apart any more."""
        if self.labels.lost:
            return
        self._waiting.append(frame.samples)
        self._waiting_samples += len(frame.samples)
        if self._waiting_samples > MAX_WAITING_SAMPLES:
            self.close()
            self._lose("the server is too busy to follow this session.")
        elif self._waiting_samples >= _PUSH_SAMPLES:
            self._enough.set()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self, source: SpeakerClient) -> None:
        try:
            speakers = await source.live()
            try:
                while True:
                    await self._enough.wait()
                    await self._push(speakers)
            finally:
                speakers.close()
        except AsrError as error:
            self._lose(error.message)
        except Exception as error:  # the words of the session do not depend on it
            logger.opt(exception=error).error("live speakers failed")
            self._lose("the server failed; the log has the details.")

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
        try:
            voices = await self._voices()
        except SpeakersUnavailable as error:  # all speakers keep their names or letters
            logger.warning("live speakers are not recognised", reason=error.message)
        else:
            self.labels.names.recognise(voice_prints, voices)

    def _lose(self, reason: str) -> None:
        updates = self.labels.lose()
        self._waiting.clear()
        self._waiting_samples = 0
        self._send(SpeakersLost(f"Speakers are not told apart any more: {reason}"))
        for update in updates:
            self._send(update)
