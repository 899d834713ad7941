"""Answers that are kept for the same request, bounded by their bytes; the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from asr_server.features.speech_output.requests import AudioChunk, SentenceBegun, SpeechDone, SpeechEvent, SpeechTimings

# An answer that takes more than this part of all would push out too many others.
_LARGEST_PART = 4
# What the objects around an answer's bytes take, about.
_EVENT_BYTES = 300


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """The events of an answer, with all audio of a sentence in one chunk."""

    events: tuple[SentenceBegun | AudioChunk, ...]
    done: SpeechDone

    async def replay(self, emit: Callable[[SpeechEvent], Awaitable[None]]) -> None:
        """Emit the events as they were emitted when the answer was made."""
        for event in (*self.events, self.done):
            await emit(event)

    @property
    def size_bytes(self) -> int:
        """The bytes that the answer takes of the cache, about."""
        data = sum(len(event.data) if isinstance(event, AudioChunk) else len(event.text) for event in self.events)
        return data + _EVENT_BYTES * (1 + len(self.events))


class SpeechCache:
    """Keeps answers. For one event loop.

    `hits` and `misses` count the requests whose answer was kept and was not. `recorded_bytes`: the bytes of answers
    that are not complete yet. They have a limit of `max_bytes` of their own.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = self.recorded_bytes = 0
        self.hits = self.misses = 0
        self._answers: OrderedDict[str, SpokenAnswer] = OrderedDict()

    def get(self, key: str) -> SpokenAnswer | None:
        """Return the answer of that key, which becomes the most recently used."""
        answer = self._answers.get(key)
        if answer is None:
            self.misses += 1
            return None
        self.hits += 1
        self._answers.move_to_end(key)
        return answer

    def fits(self, size_bytes: int) -> bool:
        """True if an answer of that size would be kept."""
        return size_bytes * _LARGEST_PART <= self.max_bytes

    def put(self, key: str, answer: SpokenAnswer) -> None:
        """Keep an answer, unless it is too large."""
        size_bytes = answer.size_bytes
        if not self.fits(size_bytes):
            return
        if (old := self._answers.pop(key, None)) is not None:
            self.held_bytes -= old.size_bytes
        self._answers[key] = answer
        self.held_bytes += size_bytes
        while self.held_bytes > self.max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self.held_bytes -= oldest.size_bytes

    @contextmanager
    def recording(self, emit: Callable[[SpeechEvent], Awaitable[None]]) -> Iterator[AnswerRecorder]:
        """Pass events on to `emit` and remember them until the block ends."""
        recorder = AnswerRecorder(self, emit)
        try:
            yield recorder
        finally:
            recorder.forget()


class AnswerRecorder:
    """Remembers the events of an answer, unless they become too many bytes."""

    def __init__(self, cache: SpeechCache, emit: Callable[[SpeechEvent], Awaitable[None]]) -> None:
        self._cache = cache
        self._emit = emit
        self._size_bytes = 0
        self._is_complete = True
        self._begun: list[SentenceBegun] = []
        self._data: list[bytearray] = []

    async def emit(self, event: SpeechEvent) -> None:
        """Remember an event, then pass it on."""
        if self._is_complete:
            self._remember(event)
        await self._emit(event)

    def answer(self, done: SpeechDone) -> SpokenAnswer | None:
        """Return the answer to keep, or None if it is too large."""
        if not self._is_complete:
            return None
        events: list[SentenceBegun | AudioChunk] = []
        for begun, data in zip(self._begun, self._data, strict=True):
            events += [begun, AudioChunk(begun.index, bytes(data))]
        return SpokenAnswer(tuple(events), replace(done, cached=True, timings=SpeechTimings()))

    def forget(self) -> None:
        """Give the memory back; nothing is remembered any more."""
        self._cache.recorded_bytes -= self._size_bytes
        self._size_bytes, self._is_complete = 0, False
        self._begun, self._data = [], []

    def _remember(self, event: SpeechEvent) -> None:
        match event:
            case SentenceBegun():
                self._begun.append(event)
                self._data.append(bytearray())
            case AudioChunk(sentence=sentence, data=data):
                self._size_bytes += len(data)
                self._cache.recorded_bytes += len(data)
                self._data[sentence] += data
        if not self._cache.fits(self._size_bytes) or self._cache.recorded_bytes > self._cache.max_bytes:
            self.forget()
