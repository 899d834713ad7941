"""Messages that wait to be sent to one live client, in order and bounded in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from asr_server.core.errors import AsrError, SlowReader
from asr_server.features.handover.handover import ContinuationIssued, MoveRequested, SpeakersRestarted
from asr_server.features.speakers.live_labels import SpeakersLost, UtteranceSpeakers
from asr_server.live.final_words import WordTimestamps
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
    | UtteranceSpeakers
    | SpeakersLost
    | SpeakersRestarted
    | ContinuationIssued
    | MoveRequested
)

# With what the socket itself buffers this stays under 2 MiB a session.
LIMIT_BYTES = 1024 * 1024
_MESSAGE_BYTES = 400  # what a message takes besides its text, on the wire and here
_RUN_BYTES = 100  # the same for a run of one speaker, with the name
_CHARACTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message. `lag_ms`: how long ago the last audio arrived that it is about; 0 if it is about none. `speakers`: of
    a text, where speakers are told apart."""

    message: Message
    lag_ms: int = 0
    speakers: UtteranceSpeakers | None = None


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
        """An upper bound of what waits."""
        return self._bytes

    def put(self, outgoing: Outgoing) -> None:
        """Add a message. Over the limit the outbox is emptied and closed with `SlowReader`."""
        if self._closed:
            return
        if self._waiting and _replaces(outgoing.message, self._waiting[-1].message):
            self._bytes -= _size(self._waiting.pop())
        self._waiting.append(outgoing)
        self._bytes += _size(outgoing)
        if self._bytes > self._limit_bytes:
            self._waiting.clear()
            self._bytes = 0
            self.close(SlowReader("The client did not read for so long that too much was waiting for it."))
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
    """What a client needs of a final: nothing but the present labels, if it has the finals up to `received`."""
    if isinstance(kept.message, Final) and kept.message.utterance > received:
        return kept
    return Outgoing(kept.speakers) if kept.speakers is not None and kept.speakers.runs else None


def _replaces(new: Message, old: Message) -> bool:
    if isinstance(new, Partial) and isinstance(old, Partial):
        return new.utterance == old.utterance
    if isinstance(new, ContinuationIssued) and isinstance(old, ContinuationIssued):
        return True
    return isinstance(new, UtteranceSpeakers) and isinstance(old, UtteranceSpeakers) and new.utterance == old.utterance


def _size(outgoing: Outgoing) -> int:
    return _message_size(outgoing.message) + (_message_size(outgoing.speakers) if outgoing.speakers else 0)


def _message_size(message: Message) -> int:
    match message:
        case Partial() | Final():
            # The text goes out whole and in its parts.
            return _MESSAGE_BYTES + 2 * _CHARACTER_BYTES * len(message.text)
        case WordTimestamps():
            return _MESSAGE_BYTES * (1 + len(message.words))
        case UtteranceSpeakers():
            return _MESSAGE_BYTES + sum(_RUN_BYTES + _CHARACTER_BYTES * len(run.text) for run in message.runs)
        case ContinuationIssued(continuation=state) | MoveRequested(continuation=state):
            hotwords = state.configured.hotwords if state.configured is not None else ""
            return 4 * _MESSAGE_BYTES + 2 * _CHARACTER_BYTES * (len(state.carried_over) + len(hotwords))
        case SessionError() | SpeakersLost():
            return _MESSAGE_BYTES + _CHARACTER_BYTES * len(message.message)
        case _:
            return _MESSAGE_BYTES
