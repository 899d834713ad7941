"""The events of a speech session for its client, in order: one is added when the one before it has been taken."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from asr_server.features.speech_output.encoding.formats import SpeechFormat


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """The session has begun, with this format of its audio."""

    id: str
    format: SpeechFormat
    ignored: tuple[str, ...] = ()  # fields of the request that the engine does not use


@dataclass(frozen=True, slots=True)
class SentenceStarted:
    """The audio of a sentence is next."""

    index: int
    text: str
    start_samples: int  # samples of the session before the sentence


@dataclass(frozen=True, slots=True)
class SpokenAudio:
    """The next bytes of the audio."""

    data: bytes
    end_samples: int  # samples of the session up to the end of these bytes


@dataclass(frozen=True, slots=True)
class SentenceEnded:
    """All samples of a sentence were made."""

    index: int
    samples: int  # of the sentence and the pause before it


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything before a flush was spoken, and its file is complete."""


@dataclass(frozen=True, slots=True)
class SpeechCancelled:
    """Nothing follows of the text before a cancel."""

    sentences: int  # of the session, that were sent whole
    samples: int  # of the session, that were sent


@dataclass(frozen=True, slots=True)
class SessionDone:
    """Everything was spoken."""

    sentences: int  # of the session, that were sent whole
    samples: int  # of the session, that were sent


SessionEvent = SessionStarted | SentenceStarted | SpokenAudio | SentenceEnded | Flushed | SpeechCancelled | SessionDone
# The events that a cancel takes back, if they were not sent yet.
_OF_SPEECH = SentenceStarted | SpokenAudio | SentenceEnded | Flushed


class SpeechOutbox:
    """Events for one connection. For one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[SessionEvent] = deque()
        self._added, self._taken = asyncio.Event(), asyncio.Event()
        self._closed = False
        self._error: Exception | None = None

    async def put(self, event: SessionEvent) -> None:
        """Add an event. Returns when it was taken or taken back; at once if the outbox is closed."""
        if not self._closed:
            self._waiting.append(event)
            self._added.set()
        while not self._closed and any(event is other for other in self._waiting):
            self._taken.clear()
            await self._taken.wait()

    def drop_speech(self) -> None:
        """Take back the waiting events of texts that were cancelled."""
        self._waiting = deque(event for event in self._waiting if not isinstance(event, _OF_SPEECH))
        self._taken.set()

    def close(self, error: Exception | None = None) -> None:
        """Accept no more events. Those that wait are still taken, then `take` raises the error."""
        if not self._closed:
            self._closed, self._error = True, error
            self._added.set()
            self._taken.set()

    async def take(self, timeout_s: float) -> SessionEvent | None:
        """Return the next event, None after the last. Raises the error that closed the outbox, and `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            while not self._waiting and not self._closed:
                self._added.clear()
                await self._added.wait()
        if self._waiting:
            event = self._waiting.popleft()
            self._taken.set()
            return event
        if self._error is not None:
            raise self._error
        return None
