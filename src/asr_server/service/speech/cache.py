"""Answers that are kept for the same request, bounded by their bytes; the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from asr_server.service.speech.requests import AudioChunk, SentenceBegun, SpeechDone

# An answer that takes more than this part of all would push out too many others.
_LARGEST_PART = 4
# What the objects around an answer's bytes take, about.
_EVENT_BYTES = 300


@dataclass(frozen=True, slots=True)
class SpokenAnswer:
    """The events of an answer, with all audio of a sentence in one chunk."""

    events: tuple[SentenceBegun | AudioChunk, ...]
    done: SpeechDone

    @property
    def size_bytes(self) -> int:
        """What it takes of the cache."""
        data = sum(len(event.data) if isinstance(event, AudioChunk) else len(event.text) for event in self.events)
        return data + _EVENT_BYTES * (1 + len(self.events))


class SpeechCache:
    """Used on the event loop. `hits`, `misses`: how often an answer was there."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.hits = self.misses = 0
        self._answers: OrderedDict[str, SpokenAnswer] = OrderedDict()

    def get(self, key: str) -> SpokenAnswer | None:
        """The answer of that key, which is now the most recently used."""
        answer = self._answers.get(key)
        if answer is None:
            self.misses += 1
            return None
        self.hits += 1
        self._answers.move_to_end(key)
        return answer

    def put(self, key: str, answer: SpokenAnswer) -> None:
        """Keep an answer, unless it is too large."""
        size_bytes = answer.size_bytes
        if size_bytes * _LARGEST_PART > self.max_bytes:
            return
        if (old := self._answers.pop(key, None)) is not None:
            self.held_bytes -= old.size_bytes
        self._answers[key] = answer
        self.held_bytes += size_bytes
        while self.held_bytes > self.max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self.held_bytes -= oldest.size_bytes
