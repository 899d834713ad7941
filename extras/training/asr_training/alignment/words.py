"""The time slots of words."""

from __future__ import annotations

from collections.abc import Sequence

from asr_server.core.audio import SAMPLE_RATE
from asr_training.speech import SpokenWord

SLOT_MS, SLOTS = 40, 800  # 32 s of slots: the server cuts speech into spans of at most 30 s
# espeak-ng reports these pairs as one word: the start of the second is unknown.
FUSED = {("on", "the"), ("no", "one")}


def timestamp_slots(words: Sequence[SpokenWord]) -> list[int]:
    """The true slots of all timestamps, start and end of each word; -1 if the synthesiser does not report one."""
    slots: list[int] = []
    for number, word in enumerate(words):
        before = words[number - 1].text if number else ""
        after = words[number + 1].text if number + 1 < len(words) else ""
        slots.append(-1 if (before, word.text) in FUSED else slot_of(word.start))
        slots.append(-1 if (word.text, after) in FUSED else slot_of(word.end))
    return slots


def slot_of(sample: int) -> int:
    """The slot nearest to a sample."""
    return min(SLOTS - 1, round(sample * 1000 / SAMPLE_RATE / SLOT_MS))
