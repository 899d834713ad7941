"""The times of the words of a transcript: taken from an alignment and repaired, or estimated from regions of speech.

An aligner gives times for pieces of the text: without punctuation, perhaps in another case or divided differently
(several Han characters in one piece, one word in two), and perhaps not for all of it. Only the letters and digits of
pieces and words are matched. The times are then made fit for subtitles: in order, disjoint, never empty, inside the
span.

Without an aligner, words are spread over the regions of speech in proportion to their syllables. No word extends over a
pause: each word is first assigned to a region, so that each pause falls near its proportional place in the text, and
preferably after a sentence or clause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate, groupby, pairwise

from asr_server.core.transcript import TimeSource, Word
from asr_server.text import words
from asr_server.text.scripts import normal_form
from asr_server.text.words import Boundary, boundary_after, syllables

# How much nearer another place must be than the end of a sentence to get the pause. Estimates are off by a second: with
# 500 ms inside a sentence, a pause between two people fell on another word in 5 of 26 pairs of recordings, now in 3.
_DETOUR_MS = {Boundary.TIED: 1500.0, Boundary.NONE: 1500.0, Boundary.CLAUSE: 500.0, Boundary.SENTENCE: 0.0}


def estimate(text: str, language: str, speech_regions: Sequence[tuple[int, int]]) -> tuple[Word, ...]:
    """Return the words of `text`, each inside one of `speech_regions`, in order, disjoint and at least 1 ms long.

    `speech_regions`: [start, end) in ms, where speech was found; `language`: the model's name for it. If there are
    enough words, every region gets one. If a region is too short for its words (under 1 ms a word), the words fill the
    pauses too, and the last words may lie after the last region. Raises `ValueError` for words without any region.
    """
    written = words.split(text)
    if not written:
        return ()
    speech = merged(region for region in speech_regions if region[1] > region[0])
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


def merged(regions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the regions in order, with overlapping and touching ones merged."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(regions):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _cuts(written: Sequence[str], weights: Sequence[float], speech: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of words before each pause that gives the least total distance. The numbers are all different
    if there are enough words.

    Dynamic programming over pauses and words: `best[i]` is the least cost with the current pause before word i or
    earlier.
    """
    count, pauses = len(written), len(speech) - 1
    least = 1 if count > pauses else 0  # words in a region
    total_ms = sum(end - start for start, end in speech)
    ms_per_weight = total_ms / sum(weights)
    said_ms = [0.0, *(done * ms_per_weight for done in accumulate(weights))]
    detour = [0.0, *(_DETOUR_MS[boundary_after(word)] for word in written)]
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


Piece = tuple[str, int, int]  # text, start and end in ms
Time = tuple[int, int]  # start and end in ms

_LEAST_MS = 40  # a shorter time is no measurement: half a step of the aligner, which is 80 ms
_SYLLABLE_MS = 200  # for words without a time: the slowest rate in text/words.py, about five a second
_KNOWN_SHARE = 0.5  # this share of a word's characters must be matched for its time to count as measured


def transfer_timestamps(text: str, aligned: Sequence[Piece], span_ms: Time, language: str = "") -> tuple[Word, ...]:
    """Return the words of `text` with the times of `aligned`, in order, disjoint, at least 1 ms long, inside `span_ms`.

    `span_ms`: [start, end) of the audio. A word is `ALIGNED` if at least half of its characters are in aligned pieces
    and its time needs no repair. Dividing a piece among several words and moving back an end that is inside the next
    word are not repairs. All other words are `ESTIMATED` by syllables, between their neighbours or from a share of a
    neighbour's time. Words end after the span only if it has less than 1 ms a word.
    """
    written = words.split(text)
    if not written:
        return ()
    low, high = span_ms
    high = max(high, low + len(written))
    weights = [syllables(word, language) for word in written]
    measured = _measured(written, aligned)
    times = _in_order([t and (min(max(t[0], low), high), min(max(t[1], low), high)) for t in measured])
    return tuple(
        Word(written[i], start, end, block.source)
        for block in _widened(list(_blocks(times, weights, (low, high))), (low, high))
        for i, (start, end) in enumerate(spread(weights[block.first : block.last], *block.time), start=block.first)
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """Words [first, last) that share one time: one measured word, or some that were not measured."""

    first: int
    last: int
    time: Time  # [start, end) in milliseconds
    source: TimeSource  # how the time was found

    @property
    def ms_per_word(self) -> float:
        return (self.time[1] - self.time[0]) / (self.last - self.first)


def _measured(written: Sequence[str], aligned: Sequence[Piece]) -> list[Time | None]:
    """Return each word's time from the pieces that have its characters, unchecked; None if too few were found."""
    ours = [(char, i) for i, word in enumerate(written) for char in letters(word)]
    theirs = [timed for piece in aligned for timed in timed_letters(piece)]
    found: list[list[Time]] = [[] for _ in written]
    for i, j in _matches([char for char, _ in ours], [char for char, _ in theirs]):
        found[ours[i][1]].append(theirs[j][1])
    return [
        (times[0][0], times[-1][1]) if times and len(times) >= _KNOWN_SHARE * len(letters(word)) else None
        for word, times in zip(written, found, strict=True)
    ]


def letters(text: str) -> list[str]:
    return [char for char in normal_form("NFKD", text.casefold()) if char.isalnum()]


def timed_letters(piece: Piece) -> Iterator[tuple[str, Time]]:
    """Yield the letters and digits of a piece, each with its share of the time."""
    text, start, end = piece
    chars = letters(text)
    for i, char in enumerate(chars):
        yield char, (start + (end - start) * i // len(chars), start + (end - start) * (i + 1) // len(chars))


def _matches(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int]]:
    if ours == theirs:
        yield from ((i, i) for i in range(len(ours)))
        return
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        yield from ((block.a + i, block.b + i) for i in range(block.size))


def _in_order(times: Sequence[Time | None]) -> list[Time | None]:
    """Return the longest subsequence of times whose starts do not fall, each ending where the next begins at the
    latest.

    Times outside the subsequence, and times that become empty, are None.
    """
    kept = longest_rising([(i, time[0]) for i, time in enumerate(times) if time])
    result: list[Time | None] = [None] * len(times)
    limit: int | None = None
    for i in reversed(kept):
        start, end = times[i]  # type: ignore[misc]  # only words with a time are in `kept`
        end = end if limit is None else min(end, limit)
        if end > start:
            result[i], limit = (start, end), start
    return result


def longest_rising(starts: Sequence[tuple[int, int]]) -> list[int]:
    """Return the keys of the longest subsequence of (key, start) whose starts do not fall."""
    tails: list[int] = []  # the least start at which a subsequence of each length can end,
    ends: list[int] = []  # and its position
    before: list[int] = []  # the position before each in its subsequence
    for position, (_, start) in enumerate(starts):
        length = bisect_right(tails, start)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1], ends[length : length + 1] = [start], [position]
    chain, position = [], ends[-1] if ends else -1
    while position >= 0:
        chain.append(starts[position][0])
        position = before[position]
    return chain[::-1]


def _blocks(times: Sequence[Time | None], weights: Sequence[float], span_ms: Time) -> Iterator[_Block]:
    """Yield measured words one by one. A run of other words follows the word before it and lasts as long as its
    syllables take; the first run ends at the word after it."""
    low, high = span_ms
    first = 0
    for known, run in groupby(times, key=lambda time: time is not None):
        run_times = list(run)
        last = first + len(run_times)
        if known:
            yield from (
                _Block(first + i, first + i + 1, time, TimeSource.ALIGNED) for i, time in enumerate(run_times) if time
            )
            low = run_times[-1][1] if run_times[-1] else low
        else:
            end = next((time[0] for time in times[last:] if time), high)
            usual = round(_SYLLABLE_MS * sum(weights[first:last]))
            alone = last - first == len(times)
            if not first:
                yield _Block(first, last, (low if alone else max(low, end - usual), end), TimeSource.ESTIMATED)
            else:
                yield _Block(first, last, (low, min(end, low + usual)), TimeSource.ESTIMATED)
        first = last


def _widened(blocks: list[_Block], span_ms: Time) -> list[_Block]:
    """Return the blocks. A block with too little time for its words is merged with the neighbour that has
    more time a word."""
    i = 0
    while i < len(blocks):
        if blocks[i].ms_per_word >= _LEAST_MS:
            i += 1
        elif len(blocks) == 1:
            return [_Block(0, blocks[0].last, span_ms, TimeSource.ESTIMATED)]
        else:
            sides = [j for j in (i - 1, i + 1) if 0 <= j < len(blocks)]
            left, right = sorted((i, max(sides, key=lambda j: blocks[j].ms_per_word)))
            time = (blocks[left].time[0], blocks[right].time[1])
            blocks[left : right + 1] = [_Block(blocks[left].first, blocks[right].last, time, TimeSource.ESTIMATED)]
            i = left
    return blocks
