"""Finds the speakers of a live session, next to recognition, which never waits for it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, InvalidInput, SpeakersUnavailable
from asr_server.features.speakers.diarization.turns import LiveSpeakers, LiveSpeakerSource, VoicePrint
from asr_server.features.speakers.live_labels import SpeakerLabels, UtteranceSpeakers
from asr_server.features.speakers.voices import EnrolledVoice, NamedVoice, VoiceStore
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import Final, Partial, ResetDone, Samples
from asr_server.live.machine.utterance import Frame
from asr_server.live.options import PartRequest, SessionPart
from asr_server.live.outbox import CHARACTER_BYTES, MESSAGE_BYTES, Message, Outgoing, PartMessage

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.options import Opening
    from asr_server.net.access import Caller

Json = dict[str, Any]

# The least that is given at once, since each call has its cost.
_PUSH_SAMPLES = SAMPLE_RATE // 2
# The most that may wait, about 2 MB. Beyond it the analysis is too late to be of use, and is given up.
MAX_WAITING_SAMPLES = 30 * SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class SpeakersLost(PartMessage):
    """Speakers are not told apart any more."""

    message: str  # the reason, for people

    def wire(self) -> Json:
        """Return the message of the wire."""
        return {"status": "speakers_unavailable", "message": self.message}

    @property
    def size_bytes(self) -> int:
        """An upper bound of what it takes."""
        return MESSAGE_BYTES + CHARACTER_BYTES * len(self.message)


@dataclass(frozen=True, slots=True)
class LiveSpeakerOption:
    """The option `speakers` of `WS /ws/transcribe`."""

    source: LiveSpeakerSource | None  # None where speakers are not told apart
    voices: VoiceStore | None = None  # None where no voices are stored

    def read_opening(self, socket: WebSocket, opening: Opening) -> Opening:
        """Add the speakers to a session whose client asks for them."""
        if not opening.query.speakers:
            return opening
        caller: Caller = socket.state.caller
        return opening.with_part(self.requested(caller.owner))

    def requested(self, owner: str = "") -> PartRequest:
        """Return the speakers of a session of this owner."""

        def make(session_id: str, send: Callable[[PartMessage], None]) -> SessionSpeakers:
            assert self.source is not None, "`check` was called before"
            return SessionSpeakers(self.source, SpeakerLabels(), send, self._voices_of(owner))

        return PartRequest(make, self._check)

    def _check(self) -> None:
        if self.source is None:
            raise InvalidInput("This server does not distinguish speakers.", code="unsupported_value", param="speakers")
        self.source.check_live()

    def _voices_of(self, owner: str) -> Callable[[], Awaitable[list[EnrolledVoice]]] | None:
        """Return what reads the owner's voices that can be compared with those of live speakers."""
        if self.source is None or self.voices is None:
            return None
        return functools.partial(self.voices.comparable, owner, self.source.voice_model)


class SessionSpeakers(SessionPart):
    """The speakers of one session."""

    def __init__(
        self,
        source: LiveSpeakerSource,
        labels: SpeakerLabels,
        send: Callable[[UtteranceSpeakers | SpeakersLost], None],
        voices: Callable[[], Awaitable[Sequence[NamedVoice]]] | None = None,
    ) -> None:
        """`send` gets changes of labels that were sent, and once why there are no more, if that happens. `voices` reads
        those that have names; None where none can be stored."""
        self._voices = voices
        self._send = send
        self.labels = labels
        self.lost = False
        self._waiting: list[Samples] = []
        self._waiting_samples = 0
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._run(source))

    def hello(self) -> Json:
        """Return whether speakers are told apart, or not any more."""
        return {"speakers": not self.lost}

    def shown(self, message: Message) -> Message:
        """Return the message; words with their speakers."""
        match message:
            case WordTimestamps():
                return self.labels.on_words(message)
            case ResetDone(utterance=int(discarded)):
                self.labels.discard(discarded)
        return message

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return the message; a text with its speakers."""
        text = outgoing.message
        return replace(outgoing, details=self.labels.on_text(text)) if isinstance(text, Partial | Final) else outgoing

    def on_frame(self, frame: Frame) -> None:
        """Take the next audio. If too much waits, speakers are not told apart any more."""
        if self.lost:
            return
        self._waiting.append(frame.samples)
        self._waiting_samples += len(frame.samples)
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
