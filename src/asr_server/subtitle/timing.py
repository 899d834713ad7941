"""Estimates the times of the words of a span from its regions of speech alone.

Words are spread over the regions in proportion to their syllables. No word extends over a pause: first each word is
assigned to a region, so that pauses fall near the proportional place in the text, and rather after a sentence or
clause than inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from asr_server.core.transcript import TimeSource, Word
from asr_server.text import boundary, words
from asr_server.text.boundary import Boundary
from asr_server.text.syllables import syllables

# How much nearer than the end of a sentence another place must be to get the pause; chosen, not measured.
_DETOUR_MS = {Boundary.TIED: 500.0, Boundary.NONE: 500.0, Boundary.CLAUSE: 100.0, Boundary.SENTENCE: 0.0}


def estimate(text: str, language: str, speech_regions: Sequence[tuple[int, int]]) -> tuple[Word, ...]:
    """Return the words of `text`, each inside one of `speech_regions`, in order, disjoint and at least 1 ms long.

    `speech_regions`: [start, end) in ms, where speech was found; `language`: the model's name of it. If there
    are enough words, every region gets one. If a region is too short for its words (under 1 ms a word), the words fill
    the pauses too, and the last words may lie after the last region. Raises `ValueError` for a text without
    any region.
    """
    written = words.split(text)
    if not written:
        return ()
    speech = _disjoint(speech_regions)
    if not speech:
        raise ValueError("words need at least one region of speech")
    weights = [syllables(word, language) for word in written]
    cuts = [0, *_cuts(written, weights, speech), len(written)]
    if any(end - start < last - first for (first, last), (start, end) in zip(pairwise(cuts), speech, strict=True)):
        begin = speech[0][0]
        cuts, speech = [0, len(written)], [(begin, max(speech[-1][1], begin + len(written)))]
    shares = zip(pairwise(cuts), speech, strict=True)
    times = [time for (first, last), region in shares for time in spread(weights[first:last], *region)]
    return tuple(Word(word, *time, TimeSource.ESTIMATED) for word, time in zip(written, times, strict=True))


def spread(weights: Sequence[float], start_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """Divide [start_ms, end_ms) in proportion to `weights`; there may be at most one weight for each millisecond."""
    total, free = sum(weights), end_ms - start_ms - len(weights)
    # One millisecond each and the rest by weight, so that none is empty.
    ends = [start_ms + i + round(free * done / total) for i, done in enumerate(accumulate(weights), start=1)]
    return list(pairwise([start_ms, *ends]))


def _disjoint(speech_regions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the regions in order, without empty ones; overlapping and touching ones are merged."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(s for s in speech_regions if s[1] > s[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _cuts(written: Sequence[str], weights: Sequence[float], speech: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of words before each pause, for the least total distance; if there are enough words, all
    different.

    Dynamic programming over pauses and words: `best[i]` is the least cost with the current pause before word i or
    earlier.
    """
    count, pauses = len(written), len(speech) - 1
    least = 1 if count > pauses else 0  # words in a region
    total_ms = sum(end - start for start, end in speech)
    said_ms = [0.0, *(done * total_ms / sum(weights) for done in accumulate(weights))]
    detour = [0.0, *(_DETOUR_MS[boundary.after(word)] for word in written)]
    best, choices = [0.0] * (count + 1), []
    for pause, due_ms in enumerate(accumulate(end - start for start, end in speech[:-1]), start=1):
        row, choice = [float("inf")] * (count + 1), [0] * (count + 1)
        for i in range(least * pause, count + 1 - least * (pauses + 1 - pause)):
            cost = best[i - least] + detour[i] + abs(said_ms[i] - due_ms)
            row[i], choice[i] = (cost, i) if not i or cost < row[i - 1] else (row[i - 1], choice[i - 1])
        best = row
        choices.append(choice)
    cuts = [count]
    for choice in reversed(choices):
        cuts.append(choice[cuts[-1] - least])
    return cuts[:0:-1]
