"""The input of a live session that it has not processed yet, in order and bounded in bytes; when it arrived, and how
fast its client sends."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field, replace

from asr_server.core.audio import s_to_ms
from asr_server.live.machine.events import Audio, Configure, Event
from asr_server.net.loop_time import TimeSlice
from asr_server.net.shared_bytes import SharedBytes

_PIECE_BYTES = 8 * 1024  # smaller pieces of audio wait as one: each alone would take many times its size
_EVENT_BYTES = 8 * 1024  # what an event counts besides its audio: far more than it is, so that few of them wait
# They are processed even when their caller has no more time of the event loop, so that few of them wait.
_MOST_ACTIONS = 16
_ARRIVALS_KEPT = 8_192
# A client this far ahead of real time is uploading a recording, not speaking.
_AHEAD_S = 10.0
_REOPENED_S = 10.0  # of audio that a client may record before it reaches the server of its new session


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone."""

    clean: bool  # the client ended it, so the open utterance ends; otherwise it stays open


@dataclass(frozen=True, slots=True)
class RefusedAction:
    """An action that was answered with an error. It changes nothing, and counts as one of the client's."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """An event, and when it arrived on the monotonic clock."""

    event: Event | Disconnected | RefusedAction
    arrived_s: float
    size_bytes: int


class Inbox:
    """Filled by the connections of a session, emptied by its one task. Everything runs on the event loop.

    An event counts, and stays the first, until `remove_first`: the task removes it only after it has processed it.
    """

    def __init__(self, memory: SharedBytes) -> None:
        self._memory = memory
        self._waiting: deque[Incoming] = deque()
        self.size_bytes = 0
        self.audio_bytes = 0
        self._actions = 0  # that wait
        # One event for every kind of change. Whoever waits clears it before, and then checks what it waits for.
        self._changed = asyncio.Event()
        self._slice = TimeSlice()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait_for_room(self, event: Event | Disconnected | RefusedAction) -> None:
        """Returns once the event may be put. One event always may, however large it is.

        Only this inbox's own progress is waited for: others that shrink may leave more room, but it needs none of it.
        """
        # Between the last check and the caller's `put` nothing is awaited, so no other sender can take the room.
        while self._waiting and (
            self.size_bytes + _size(event) > self._memory.queue_bytes
            or (self._actions >= _MOST_ACTIONS and not isinstance(event, Audio))
        ):
            self._changed.clear()
            await self._changed.wait()

    def put(self, event: Event | Disconnected | RefusedAction) -> None:
        """Add an event as the last."""
        if isinstance(event, Audio):
            self.audio_bytes += len(event.pcm)
            if self._join(event.pcm):
                return
        else:
            self._actions += 1
        incoming = Incoming(event, time.monotonic(), _size(event))
        self._waiting.append(incoming)
        self.size_bytes += incoming.size_bytes
        self._changed.set()

    async def first(self) -> Incoming:
        """The first event, which stays where it is; waits for one. Between events the other tasks get their turn."""
        await self._slice.next_round()
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting[0]

    def remove_first(self) -> None:
        """The first event has been processed."""
        done = self._waiting.popleft()
        self.size_bytes -= done.size_bytes
        if isinstance(done.event, Audio):
            self.audio_bytes -= len(done.event.pcm)
        else:
            self._actions -= 1
        self._changed.set()

    def clear(self) -> None:
        """Drop everything: nobody processes it any more."""
        self._waiting.clear()
        self.size_bytes = self.audio_bytes = self._actions = 0
        self._changed.set()

    def _join(self, pcm: bytes) -> bool:
        """Append audio to the last event if that is a small piece of audio too. Returns whether it was.

        Not to the first: the session's task is processing it. The arrival time stays that of the earlier piece.
        """
        last = self._waiting[-1] if len(self._waiting) > 1 else None
        if last is None or not isinstance(last.event, Audio) or len(last.event.pcm) + len(pcm) > _PIECE_BYTES:
            return False
        self._waiting[-1] = replace(last, event=Audio(last.event.pcm + pcm), size_bytes=last.size_bytes + len(pcm))
        self.size_bytes += len(pcm)
        return True


def _size(event: Event | Disconnected | RefusedAction) -> int:
    """An upper bound of what an event takes while it waits."""
    match event:
        case Audio(pcm=pcm):
            return _EVENT_BYTES + len(pcm)
        case Configure(rules=rules):
            return _EVENT_BYTES + 4 * len(rules.context)
        case _:
            return _EVENT_BYTES


@dataclass(frozen=True, slots=True)
class SendingPace:
    """The pace at which the client of one session sends."""

    bytes_per_s: int
    began_s: float  # when the speaker of its first byte began, by the machine's monotonic clock

    def is_spoken(self, sent_bytes: int) -> bool:
        return sent_bytes / self.bytes_per_s - (time.monotonic() - self.began_s) <= _AHEAD_S


def began_before_reopening_s(max_utterance_s: float) -> float:
    """Return when a session began whose client sends an utterance and more again."""
    return time.monotonic() - _REOPENED_S - max_utterance_s


@dataclass(slots=True)
class ArrivalTimes:
    """The times at which the latest audio of one session arrived."""

    ends_samples: deque[int] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    def add(self, end_samples: int, time_s: float) -> None:
        """The audio up to `end_samples` arrived at this time of the monotonic clock."""
        self.ends_samples.append(end_samples)
        self.times_s.append(time_s)

    def lag_ms(self, end_samples: int) -> int:
        """Milliseconds since the sample before `end_samples` arrived: with the last piece if no frame had it then."""
        if not self.times_s:
            return 0
        place = min(bisect_left(self.ends_samples, end_samples), len(self.times_s) - 1)
        return max(0, s_to_ms(time.monotonic() - self.times_s[place]))
