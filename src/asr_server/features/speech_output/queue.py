"""The sentences of a session that are not spoken yet; the first of them are at the engine."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice

from asr_server.features.speech_output.arriving_text import ArrivedSentence
from asr_server.features.speech_output.engines.client import SpeechStream
from asr_server.features.speech_output.script import Delivery, spoken_s
from asr_server.schedule.admission import Admission, AdmissionTicket
from asr_server.schedule.job import Priority

# Sentences at the engine: the one whose audio is being taken, and two ahead of it.
_UNDER_WAY = 3


class QueueMark(Enum):
    """A step that comes between two sentences."""

    FLUSH = "flush"  # complete the file and say so
    END = "end"  # the same, and end the session
    STOP = "stop"  # the server ends


@dataclass(slots=True, eq=False)
class QueuedSentence:
    """A sentence that waits."""

    text: str
    how: Delivery
    duration_s: float  # about how long it will be
    arrived_s: float = field(default_factory=time.perf_counter)
    stream: SpeechStream | None = None  # once it is at the engine


class SpeechQueue:
    """Sentences and marks in order. For one event loop.

    While there are sentences, it holds a lease of the engine and a ticket of the admission; otherwise nothing.
    `sentence_s`: the time that a sentence has at the engine. `characters` counts the text that waits; a mark counts as
    one, so that marks have a bound. `current`: the sentence that is being spoken.
    """

    def __init__(self, admission: Admission, sentence_s: float, share: str = "") -> None:
        self.characters = 0
        self.current: QueuedSentence | None = None
        self._admission, self._sentence_s, self._share = admission, sentence_s, share
        self._items: deque[QueuedSentence | QueueMark] = deque()
        self._arrived = asyncio.Event()
        self._held = ExitStack()
        # The ticket is for everything that was queued since it is held; `_spoken_s` seconds of that are spoken.
        self._ticket: AdmissionTicket | None = None
        self._spoken_s = 0.0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def sentences(self) -> int:
        """The number of sentences that are not spoken yet, the present one included."""
        return sum(isinstance(item, QueuedSentence) for item in self._items) + (self.current is not None)

    def check(self, piece: str, how: Delivery) -> None:
        """Raise `Overloaded` if a piece of text may not wait besides what all callers and this one have waiting."""
        self._admission.check_more(self._ticket, spoken_s(piece) / how.request.speed, self._share)

    def add(self, found: list[ArrivedSentence], how: Delivery) -> None:
        """Queue sentences. Raises `Overloaded`, and what the engine thread raises."""
        if not found:
            return
        if self._ticket is None:
            with ExitStack() as begun:
                self._ticket = begun.enter_context(self._admission.hold_live(self._share))
                begun.enter_context(how.client.lease())
                self._held = begun.pop_all()
        for one in found:
            duration_s = spoken_s(one.text) / how.request.speed
            self._ticket.seconds += duration_s
            self._put(QueuedSentence(one.text, replace(how, language=one.language), duration_s))
        self._look_ahead()

    def mark(self, mark: QueueMark) -> None:
        """Queue a mark after the sentences."""
        self._put(mark)

    async def first(self) -> QueuedSentence | QueueMark:
        """Wait for the first item and return it. It stays in the queue."""
        while not self._items:
            self._release()
            self._arrived.clear()
            await self._arrived.wait()
        return self._items[0]

    def begin(self, item: QueuedSentence | QueueMark) -> None:
        """Take the first item out of the queue. The sentences after it may go to the engine."""
        self._items.popleft()
        self.characters -= _characters(item)
        if isinstance(item, QueuedSentence):
            self.current = item
            self._look_ahead()

    def finish(self) -> None:
        """Note that the present sentence is spoken."""
        assert self.current is not None
        assert self._ticket is not None
        self._spoken_s += self.current.duration_s
        self._admission.progress(self._ticket, self._spoken_s)
        self.current = None

    def clear(self) -> None:
        """Forget all that waits, and cancel its jobs. The present sentence goes on."""
        for item in reversed(self._items):  # else the engine begins the next when it has left the first
            _cancel(item)
        self._items.clear()
        self.characters = 0

    def stop(self) -> None:
        """Forget everything, and cancel all jobs."""
        self.clear()
        _cancel(self.current)
        self.current = None
        self._release()

    def _put(self, item: QueuedSentence | QueueMark) -> None:
        self._items.append(item)
        self.characters += _characters(item)
        self._arrived.set()

    def _look_ahead(self) -> None:
        sentences = (item for item in self._items if isinstance(item, QueuedSentence))
        for queued in islice(sentences, _UNDER_WAY - (self.current is not None)):
            if queued.stream is None:
                client = queued.how.client
                queued.stream = client.speak(
                    queued.how.row(queued.text),
                    priority=Priority.INTERACTIVE,
                    duration_s=queued.duration_s,
                    deadline_s=client.clock.now_s() + self._sentence_s,
                )

    def _release(self) -> None:
        self._ticket, self._spoken_s = None, 0.0
        self._held.close()


def _characters(item: QueuedSentence | QueueMark) -> int:
    return 1 if isinstance(item, QueueMark) else len(item.text)


def _cancel(item: QueuedSentence | QueueMark | None) -> None:
    if isinstance(item, QueuedSentence) and item.stream is not None:
        item.stream.cancel()
