"""What a speech session tells its client, in order: an event is added when the one before it has been taken."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from asr_server.features.speech_output.encoding.formats import SpeechFormat


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """How the text will be spoken. `ignored`: options that the engine has no use for."""

    id: str
    format: SpeechFormat
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SentenceStarted:
    """The audio of a sentence is next. `start_samples`: of all audio of the session."""

    index: int
    text: str
    start_samples: int


@dataclass(frozen=True, slots=True)
class SpokenAudio:
    """The next bytes. `end_samples`: of all audio of the session up to their end."""

    data: bytes
    end_samples: int


@dataclass(frozen=True, slots=True)
class SentenceEnded:
    """All samples of a sentence were made. `samples`: how many, with the pause before it."""

    index: int
    samples: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """Everything before a flush was spoken, and its file is complete."""


@dataclass(frozen=True, slots=True)
class SpeechCancelled:
    """Nothing follows of the text before a cancel. Of the session: sentences that were sent whole, samples sent."""

    sentences: int
    samples: int


@dataclass(frozen=True, slots=True)
class SessionDone:
    """Everything was spoken. Of the session: sentences that were sent whole, samples sent."""

    sentences: int
    samples: int


SessionEvent = SessionStarted | SentenceStarted | SpokenAudio | SentenceEnded | Flushed | SpeechCancelled | SessionDone
# What a cancel takes back, if it was not sent yet.
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
        """Take back what waits of texts that were cancelled."""
        self._waiting = deque(event for event in self._waiting if not isinstance(event, _OF_SPEECH))
        self._taken.set()

    def close(self, error: Exception | None = None) -> None:
        """No more events come. What waits is still taken, then `take` raises the error."""
        if not self._closed:
            self._closed, self._error = True, error
            self._added.set()
            self._taken.set()

    async def take(self, timeout_s: float) -> SessionEvent | None:
        """The next event, None after the last. Raises the error that closed the outbox, and `TimeoutError`."""
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
