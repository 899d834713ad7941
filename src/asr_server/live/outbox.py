"""The messages that wait for one live client, bounded in bytes, and the parts that features add to a session."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.actions import Query
    from asr_server.live.machine.utterance import Frame

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


class TextDetails(PartMessage):
    """A part's details of an utterance's text: sent with the text, and again by themselves when they change."""

    __slots__ = ()

    utterance: int

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """True if there are no details, so that they need not be sent by themselves."""

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields for the message with the text."""


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
    details: TextDetails | None = None  # of the message's text, if a part has any


class SessionPart:
    """A feature's part of one session. Subclasses override the methods, which here change nothing.

    All are called on the event loop and must return at once. `close` may be called more than once.
    """

    def hello(self) -> dict[str, Any]:
        """Return the fields of the part in the first message of a connection."""
        return {}

    def on_frame(self, frame: Frame) -> None:
        """Take the session's next audio, mono at 16 kHz. The array may be replaced later."""

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return a message that will be sent, with this part's changes and additions."""
        return outgoing

    def close(self) -> None:
        """Stop all work: the session is over."""


# Makes the part of a session from the session's id and a function that sends a message at any time.
MakePart = Callable[[str, Callable[[PartMessage], None]], SessionPart]
# Reads a feature's options from the query, and returns the factory of its part, or None. Raises `AsrError`.
OpeningReader = Callable[["WebSocket", "Query"], MakePart | None]
# Decodes the next frame of a client to 16-bit PCM.
Decode = Callable[[bytes], Awaitable[bytes]]


class Outbox:
    """The messages for one connection. A newer partial of an utterance replaces one that has not been sent.

    `missed`: messages that an earlier connection did not get. They do not count towards the limit, since they do not
    show that this connection's client reads too slowly.
    """

    def __init__(self, missed: Iterable[Outgoing] = (), *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._waiting = deque(missed)
        self.waiting_bytes = sum(map(_size, self._waiting))
        self._limit_bytes = limit_bytes + self.waiting_bytes
        self._wake = asyncio.Event()
        self._closed = False
        self._error: AsrError | None = None

    def put(self, outgoing: Outgoing) -> None:
        """Add a message. Above the limit, empty the outbox and close it with `slow_reader`."""
        if self._closed:
            return
        if self._waiting and _replaces(outgoing.message, self._waiting[-1].message):
            self.waiting_bytes -= _size(self._waiting.pop())
        self._waiting.append(outgoing)
        self.waiting_bytes += _size(outgoing)
        if self.waiting_bytes > self._limit_bytes:
            self._waiting.clear()
            self.waiting_bytes = 0
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
                self.waiting_bytes -= _size(outgoing)
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
    """Return True if a client that gets the new message does not need the old one, which was put just before."""
    if isinstance(new, Partial | TextDetails) and isinstance(old, Partial | TextDetails):
        return type(new) is type(old) and new.utterance == old.utterance
    return False


def _size(outgoing: Outgoing) -> int:
    return _message_size(outgoing.message) + (outgoing.details.size_bytes if outgoing.details is not None else 0)


def _message_size(message: Message) -> int:
    match message:
        case Partial() | Final():
            # The message contains the text twice: as a whole and in parts.
            return MESSAGE_BYTES + 2 * CHARACTER_BYTES * len(message.text)
        case WordTimestamps():
            return MESSAGE_BYTES * (1 + len(message.words))
        case SessionError():
            return MESSAGE_BYTES + CHARACTER_BYTES * len(message.message)
        case PartMessage():
            return message.size_bytes
        case _:
            return MESSAGE_BYTES
