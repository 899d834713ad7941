"""The messages that wait to be sent to one live client, in order and bounded in bytes."""

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

# Together with the socket's own buffer this stays under 2 MiB a session.
LIMIT_BYTES = 1024 * 1024
MESSAGE_BYTES = 400  # of a message besides its text, on the wire and in memory
CHARACTER_BYTES = 4


class PartMessage(ABC):
    """A message of a part of a session."""

    __slots__ = ()

    @abstractmethod
    def wire(self) -> dict[str, Any]:
        """Return the message as it is sent to the client."""

    @property
    def size_bytes(self) -> int:
        return MESSAGE_BYTES

    def replaces(self, older: PartMessage) -> bool:
        """Return True if a client that gets this message does not need the older one, which was put just before."""
        return False


class TextDetails(PartMessage):
    """A part's details of an utterance's text: sent with the text, and again by themselves when they change."""

    __slots__ = ()

    utterance: int

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if they say nothing, and need not be sent by themselves."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields for the message with the text."""

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
    lag_ms: int = 0  # time since the arrival of the message's last audio; 0 if it has none
    details: TextDetails | None = None  # of a text, if a part has some


class Outbox:
    """The messages for one connection. A newer partial of an utterance replaces one that has not been sent.

    `missed`: messages that an earlier connection did not get. They do not count towards the limit, since they do not
    show that this connection's client reads too slowly.
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
        """Add a message. Above the limit, empty the outbox and close it with `slow_reader`."""
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
        """Accept no more messages. `messages` yields the waiting ones and then ends, with the error if any."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake.set()

    async def messages(self) -> AsyncIterator[Outgoing]:
        """Yield every message until the outbox is closed. Raises the error that closed it."""
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
    """Return what a client with the finals up to `received` needs: the final, its current details only, or None."""
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
            # The message has the whole text and also its parts.
            return MESSAGE_BYTES + 2 * CHARACTER_BYTES * len(message.text)
        case WordTimestamps():
            return MESSAGE_BYTES * (1 + len(message.words))
        case SessionError():
            return MESSAGE_BYTES + CHARACTER_BYTES * len(message.message)
        case PartMessage():
            return message.size_bytes
        case _:
            return MESSAGE_BYTES
