"""The queue of sentences that are not spoken yet. The engine already has the first few."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from asr_server.features.speech_output.script import Delivery, SpeechStream
from asr_server.schedule.admission import Admission, AdmissionTicket
from asr_server.schedule.job import Priority, RequestClock
from asr_server.text.sentences import TextSpan

# Sentences at the engine: the one whose audio is being taken, and two ahead of it.
_UNDER_WAY = 3


class QueueMark(Enum):
    """A step that comes between two sentences."""

    FLUSH = "flush"  # complete the file and say so
    END = "end"  # the same, and end
    STOP = "stop"  # the server ends


@dataclass(slots=True, eq=False)
class QueuedSentence:
    """A sentence that waits."""

    span: TextSpan
    how: Delivery
    duration_s: float  # about how long it will be
    arrived_s: float = field(default_factory=time.perf_counter)
    stream: SpeechStream | None = None  # once it is at the engine


class SpeechQueue:
    """Sentences and marks in order. For one event loop.

    While it has sentences, it holds a lease of the engine and the ticket that `hold` gives; otherwise nothing.
    `deadline_s` returns the deadline of a sentence that goes to the engine now. `characters` counts the waiting text.
    A mark counts as one character, so that marks are bounded too. `current`: the sentence that is being spoken.
    """

    def __init__(
        self,
        admission: Admission,
        hold: Callable[[], AbstractContextManager[AdmissionTicket]],
        deadline_s: Callable[[RequestClock], float],
        priority: Priority = Priority.INTERACTIVE,
    ) -> None:
        self.priority = priority
        self.characters = 0
        self.current: QueuedSentence | None = None
        self._admission, self._hold, self._deadline_s = admission, hold, deadline_s
        self._items: deque[QueuedSentence | QueueMark] = deque()
        self._arrived = asyncio.Event()
        self._held = ExitStack()
        # The ticket covers everything that was queued since it was taken.
        self._ticket: AdmissionTicket | None = None
        self._queued_s = self._begun_s = self._spoken_s = self._expected_s = 0.0

    @property
    def is_idle(self) -> bool:
        return not self._items and self.current is None

    @property
    def sentences(self) -> int:
        """The number of sentences that are not spoken yet, the present one included."""
        return sum(isinstance(item, QueuedSentence) for item in self._items) + (self.current is not None)

    @contextmanager
    def expecting(self, seconds: float, share: str, how: Delivery) -> Iterator[None]:
        """Reserve this many seconds of speech until the block ends; the block queues them.

        Raises `Overloaded` if the waiting speech of this caller, or of all callers, would exceed its limit. The whole
        text is reserved before its first sentence is queued, since other callers may queue speech between sentences.
        """
        self._admission.check_more(self._ticket, seconds, share)
        self._expected_s = self._queued_s + seconds
        try:
            self._hold_all(how)
            yield
        finally:
            self._expected_s = 0.0
            if self.is_idle:
                self._release()
            elif self._ticket is not None:
                self._admission.measure(self._ticket, self._queued_s)

    def add(self, spans: Iterable[TextSpan], how: Delivery) -> None:
        """Queue sentences. Raises `Overloaded`, and what the engine thread raises."""
        found = [QueuedSentence(span, how, how.seconds(span.text)) for span in spans]
        if not found:
            return
        self._queued_s += sum(one.duration_s for one in found)
        self._hold_all(how)
        for one in found:
            self.put(one)
        self._look_ahead()

    def count_waiting(self, counts: bool) -> None:
        """Include sentences that are not begun in the admission, or leave them out while the reader takes no audio."""
        if self._ticket is not None:
            self._admission.measure(self._ticket, self._queued_s if counts else self._begun_s)

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
        """Note that the current sentence is spoken."""
        assert self.current is not None
        assert self._ticket is not None
        self._spoken_s += self.current.duration_s
        self._admission.progress(self._ticket, self._spoken_s)
        self.current = None

    def clear(self) -> None:
        """Forget all waiting sentences and cancel their jobs. The current sentence continues."""
        for item in reversed(self._items):  # last first, or the engine would begin a sentence that is cancelled next
            _cancel(item)
        self._items.clear()
        self.characters = 0

    def stop(self) -> None:
        """Forget everything, and cancel all jobs."""
        self.clear()
        _cancel(self.current)
        self.current = None
        self._release()

    def put(self, item: QueuedSentence | QueueMark) -> None:
        """Add an item, which `first` returns in its turn."""
        self._items.append(item)
        self.characters += _characters(item)
        self._arrived.set()

    def _look_ahead(self) -> None:
        sentences = (item for item in self._items if isinstance(item, QueuedSentence))
        for queued in islice(sentences, _UNDER_WAY - (self.current is not None)):
            if queued.stream is None:
                self._begun_s += queued.duration_s
                client = queued.how.client
                queued.stream = client.speak(
                    queued.how.row(queued.span.text),
                    priority=self.priority,
                    duration_s=queued.duration_s,
                    deadline_s=self._deadline_s(client.thread.request_clock),
                )

    def _hold_all(self, how: Delivery) -> None:
        if self._ticket is None:
            with ExitStack() as begun:
                ticket = begun.enter_context(self._hold())
                begun.enter_context(how.client.thread.lease(model=how.client.model))
                self._held, self._ticket = begun.pop_all(), ticket
        self._admission.measure(self._ticket, max(self._queued_s, self._expected_s))

    def _release(self) -> None:
        if self._expected_s:
            return
        self._ticket = None
        self._queued_s = self._begun_s = self._spoken_s = 0.0
        self._held.close()


def _characters(item: QueuedSentence | QueueMark) -> int:
    return 1 if isinstance(item, QueueMark) else len(item.span.text)


def _cancel(item: QueuedSentence | QueueMark | None) -> None:
    if isinstance(item, QueuedSentence) and item.stream is not None:
        item.stream.cancel()
