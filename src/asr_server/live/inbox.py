"""The unprocessed input of a live session, in order and bounded in bytes, and the arrival times of its audio.

The inboxes of all sessions share a limit, with a fair share for each. A session may hold as many bytes as are free
(Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998): a single session gets
half of the limit, two sessions a third each, and some is always free for the next one.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from asr_server.core.audio import s_to_ms
from asr_server.core.errors import Overloaded
from asr_server.live.machine.events import Audio, Configure, Event
from asr_server.net.loop_time import TimeSlice

LIMIT_BYTES = 128 * 1024 * 1024
QUEUE_BYTES = 32 * 1024 * 1024  # the most that one queue may hold
PIECE_BYTES = 64 * 1024  # a large frame is divided into pieces that wait for room one by one
RESERVED_BYTES = 256 * 1024  # a queue may always hold this much, which is more than a speaker is ever behind
_JOINED_BYTES = 8 * 1024  # smaller pieces of audio are joined: each piece takes much more memory than its bytes
_EVENT_BYTES = 8 * 1024  # counted for an event besides its audio: far more than it takes, so that few events wait
# Waiting actions. They are processed even if their caller has used up its time of the event loop.
_MOST_ACTIONS = 16
_ARRIVALS_KEPT = 8_192


class SharedBytes:
    """The limit and the bytes that all queues hold."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[object, int] = {}  # the bytes of each owner whose queues hold any

    @property
    def queue_bytes(self) -> int:
        """Return how much one queue may hold now. A queue that holds more takes nothing until it has shrunk."""
        return max(RESERVED_BYTES, min(QUEUE_BYTES, self._limit_bytes - self.held_bytes))

    def hold(self, owner: object, size_bytes: int) -> None:
        """Set the number of bytes that the owner's queues hold."""
        self.held_bytes += size_bytes - self._held.pop(owner, 0)
        if size_bytes:
            self._held[owner] = size_bytes

    @contextmanager
    def in_hand(self, size_bytes: int) -> Iterator[None]:
        """Count a large frame while its pieces wait for room in a queue. Raises `Overloaded` if it does not fit."""
        if size_bytes > RESERVED_BYTES and self.held_bytes + size_bytes > self._limit_bytes:
            raise Overloaded("Too much live audio is waiting for this large message; try again later.", retry_after_s=5)
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone."""

    clean: bool  # True if the client closed it, which ends the open utterance


@dataclass(frozen=True, slots=True)
class RefusedAction:
    """An action that was answered with an error. It changes nothing but counts as an action of the client."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An event and its arrival time on the monotonic clock."""

    event: Event | Disconnected | RefusedAction
    arrived_s: float
    size_bytes: int


class Inbox:
    """A queue filled by the connections of a session and emptied by its one task. Used on the event loop.

    The first event stays and counts until `remove_first`, which the task calls after it has processed the event.
    """

    def __init__(self, memory: SharedBytes) -> None:
        self._memory = memory
        self._waiting: deque[Incoming] = deque()
        self.size_bytes = 0
        self._actions = 0  # waiting
        # Set at every change. A waiter clears it, waits, and then checks its own condition.
        self._changed = asyncio.Event()
        self._slice = TimeSlice()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait_for_room(self, event: Event | RefusedAction) -> None:
        """Wait until the event may be put. An empty inbox takes any event.

        Waits only for progress of this inbox, never for other inboxes to free room.
        """
        # Nothing is awaited between the last check and the caller's `put`, so no other sender can take the room.
        while self._waiting and (
            self.size_bytes + _size(event) > self._memory.queue_bytes
            or (self._actions >= _MOST_ACTIONS and not isinstance(event, Audio))
        ):
            self._changed.clear()
            await self._changed.wait()

    def put(self, event: Event | Disconnected | RefusedAction) -> None:
        if isinstance(event, Audio):
            if self._join(event.pcm):
                return
        else:
            self._actions += 1
        incoming = Incoming(event, time.monotonic(), _size(event))
        self._waiting.append(incoming)
        self.size_bytes += incoming.size_bytes
        self._changed.set()

    async def first(self) -> Incoming:
        """Wait for the first event and return it without removing it. Lets other tasks run between events."""
        await self._slice.next_round()
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting[0]

    def remove_first(self) -> None:
        done = self._waiting.popleft()
        self.size_bytes -= done.size_bytes
        if not isinstance(done.event, Audio):
            self._actions -= 1
        self._changed.set()

    def clear(self) -> None:
        self._waiting.clear()
        self.size_bytes = self._actions = 0
        self._changed.set()

    def _join(self, pcm: bytes) -> bool:
        """Append audio to the last event if both are small pieces of audio. Return True if appended.

        The first event is never changed, since the session's task is processing it. The arrival time of the earlier
        piece stays.
        """
        last = self._waiting[-1] if len(self._waiting) > 1 else None
        if last is None or not isinstance(last.event, Audio) or len(last.event.pcm) + len(pcm) > _JOINED_BYTES:
            return False
        self._waiting[-1] = replace(last, event=Audio(last.event.pcm + pcm), size_bytes=last.size_bytes + len(pcm))
        self.size_bytes += len(pcm)
        return True


def _size(event: Event | Disconnected | RefusedAction) -> int:
    """Return an upper bound of the memory of a waiting event."""
    match event:
        case Audio(pcm=pcm):
            return _EVENT_BYTES + len(pcm)
        case Configure(rules=rules):
            return _EVENT_BYTES + 4 * len(rules.context)
        case _:
            return _EVENT_BYTES


class ArrivalTimes:
    """The arrival times of the latest audio of one session."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, float]] = deque(maxlen=_ARRIVALS_KEPT)  # where each ends, and its time

    def add(self, end_samples: int, time_s: float) -> None:
        """Note that the audio up to `end_samples` arrived at this time of the monotonic clock."""
        self._pieces.append((end_samples, time_s))

    def lag_ms(self, end_samples: int) -> int:
        """Return the milliseconds since the sample before `end_samples` arrived, or since the last piece if unknown."""
        if not self._pieces:
            return 0
        place = min(bisect_left(self._pieces, (end_samples, 0.0)), len(self._pieces) - 1)
        return max(0, s_to_ms(time.monotonic() - self._pieces[place][1]))
