"""Messages that wait to be sent to one live client, in order and bounded in bytes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from asr_server.core.errors import AsrError, InvalidInput
from asr_server.live.inference import WordTimestamps
from asr_server.live.machine.events import (
    Checkpoint,
    Configured,
    EndOfTurnLikely,
    Final,
    Partial,
    ResetDone,
    SessionError,
    UtteranceEnded,
    UtteranceStarted,
)

# With what the socket itself buffers this stays under 2 MiB a session.
LIMIT_BYTES = 1024 * 1024
MESSAGE_BYTES = 400  # what a message takes besides its text, on the wire and here
CHARACTER_BYTES = 4


class PartMessage(ABC):
    """A message that a part of a session makes: the session knows no more of it than how to send it."""

    __slots__ = ()

    @abstractmethod
    def wire(self) -> dict[str, Any]:
        """Return the message of the wire, by the figures of the machine."""

    @property
    def size_bytes(self) -> int:
        return MESSAGE_BYTES

    def replaces(self, older: PartMessage) -> bool:
        """True if a client that gets this message needs not get the older one, which was put just before."""
        return False


class TextDetails(PartMessage):
    """A part's details of the text of an utterance: sent with the text, and alone when they have changed since."""

    __slots__ = ()

    utterance: int

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if they say nothing, so that they need not be sent alone."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields that the message of the text gets."""

    def replaces(self, older: PartMessage) -> bool:
        return type(self) is type(older) and isinstance(older, TextDetails) and self.utterance == older.utterance


Message = (
    UtteranceStarted
    | UtteranceEnded
    | Partial
    | Final
    | EndOfTurnLikely
    | ResetDone
    | Configured
    | Checkpoint
    | SessionError
    | WordTimestamps
    | PartMessage
)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to a client."""

    message: Message
    lag_ms: int = 0  # how long ago the last audio arrived that it is about; 0 if it is about none
    details: TextDetails | None = None  # of a text, where a part knows some


class Outbox:
    """Messages for one connection. A newer partial of an utterance replaces one that is not sent yet.

    `missed`: what an earlier connection did not get. It waits from the beginning and does not count towards the limit:
    it is not there because this connection's client reads too slowly.
    """

    def __init__(self, missed: Iterable[Outgoing] = (), *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._waiting = deque(missed)
        self._bytes = sum(map(_size, self._waiting))
        self._limit_bytes = limit_bytes + self._bytes
        self._wake = asyncio.Event()
        self._closed = False
        self._error: AsrError | None = None

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def put(self, outgoing: Outgoing) -> None:
        """Add a message. Over the limit the outbox is emptied and closed with `slow_reader`."""
        if self._closed:
            return
        if self._waiting and _replaces(outgoing.message, self._waiting[-1].message):
            self._bytes -= _size(self._waiting.pop())
        self._waiting.append(outgoing)
        self._bytes += _size(outgoing)
        if self._bytes > self._limit_bytes:
            self._waiting.clear()
            self._bytes = 0
            self.close(
                InvalidInput(
                    "The client did not read for so long that too much was waiting for it.", code="slow_reader"
                )
            )
        self._wake.set()

    def close(self, error: AsrError | None = None) -> None:
        """Accept no more messages. Those that wait are still read; then `messages` ends, with the error if any."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake.set()

    async def messages(self) -> AsyncIterator[Outgoing]:
        """Every message put, until the outbox is closed. Raises the error that closed it."""
        while True:
            while self._waiting:
                outgoing = self._waiting.popleft()
                self._bytes -= _size(outgoing)
                yield outgoing
            if self._closed:
                break
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            raise self._error


def missed(kept: Outgoing, received: int) -> Outgoing | None:
    """Return what a client needs of a final: the present details alone, if it has the finals up to `received`."""
    if isinstance(kept.message, Final) and kept.message.utterance > received:
        return kept
    return Outgoing(kept.details) if kept.details is not None and not kept.details.is_empty else None


def _replaces(new: Message, old: Message) -> bool:
    if isinstance(new, Partial) and isinstance(old, Partial):
        return new.utterance == old.utterance
    return isinstance(new, PartMessage) and isinstance(old, PartMessage) and new.replaces(old)


def _size(outgoing: Outgoing) -> int:
    return _message_size(outgoing.message) + (outgoing.details.size_bytes if outgoing.details is not None else 0)


def _message_size(message: Message) -> int:
    match message:
        case Partial() | Final():
            # The text goes out whole and in its parts.
            return MESSAGE_BYTES + 2 * CHARACTER_BYTES * len(message.text)
        case WordTimestamps():
            return MESSAGE_BYTES * (1 + len(message.words))
        case SessionError():
            return MESSAGE_BYTES + CHARACTER_BYTES * len(message.message)
        case PartMessage():
            return message.size_bytes
        case _:
            return MESSAGE_BYTES
