"""Replaces parts of a segment's text, together with the timed words there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean

from asr_server.core.transcript import Segment, TimeSource, Word
from asr_server.subtitle import alignment
from asr_server.text import words


@dataclass(frozen=True, slots=True)
class Edit:
    """A part of a text and what is written in its place."""

    start: int  # first character
    end: int  # character after the last
    text: str
    kind: str | None = None  # the kind of data that the edit masks, None if it masks nothing


def applied(segment: Segment, edits: Sequence[Edit]) -> Segment:
    """Return the segment after the edits of its text, which are in order and disjoint.

    A word that replaces several gets the time from the start of the first to the end of the last. Several words that
    replace one get estimated times within its time. The tokens of the old text are left out.
    """
    if not edits:
        return segment
    return replace(
        segment,
        text=edited(segment.text, edits),
        words=tuple(_words(segment, edits)) if segment.words else (),
        spoken=(),
    )


def edited(text: str, edits: Sequence[Edit], start: int = 0, end: int | None = None) -> str:
    """Return the part [start, end) of the text after the edits, which are in order and disjoint."""
    parts, position = [], start
    for edit in edits:
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:end]])


def _words(segment: Segment, edits: Sequence[Edit]) -> Iterator[Word]:
    """Yield the words of the new text. Words that the same edit touches are merged, together with all edits of these
    words."""
    open_words: list[tuple[Word, int, int]] = []  # with their places in the text
    open_edits: list[Edit] = []
    left, at = deque(edits), 0
    for word in segment.words:
        start = segment.text.find(word.text, at)
        start, at = (start, start + len(word.text)) if start >= 0 else (at, at)
        if open_edits and start >= open_edits[-1].end:
            yield from _merged(segment, open_words, open_edits)
            open_words, open_edits = [], []
        while left and left[0].start < at:
            open_edits.append(left.popleft())
        if open_edits:
            open_words.append((word, start, at))
        else:
            yield word
    if open_edits:
        yield from _merged(segment, open_words, open_edits)


def _merged(segment: Segment, old: Sequence[tuple[Word, int, int]], edits: Sequence[Edit]) -> Iterator[Word]:
    begin, stop = min(old[0][1], edits[0].start), max(old[-1][2], edits[-1].end)
    text = edited(segment.text, edits, begin, stop).strip()
    first, last = old[0][0], old[-1][0]
    aligned = all(word.source is TimeSource.ALIGNED for word, _, _ in old)
    whole = replace(
        first,
        text=text,
        end_ms=last.end_ms,
        source=TimeSource.ALIGNED if aligned else TimeSource.ESTIMATED,
        confidence=_mean([word.confidence for word, _, _ in old]),
        masked=next((edit.kind for edit in edits if edit.kind), first.masked),
    )
    if len(words.split(text)) < 2:
        yield whole
        return
    for one in alignment.estimate(text, segment.language, [(whole.start_ms, whole.end_ms)]):
        yield replace(whole, text=one.text, start_ms=one.start_ms, end_ms=one.end_ms, source=one.source)


def _mean(confidences: Sequence[float | None]) -> float | None:
    """Return the geometric mean, None if one is unknown."""
    known = [max(one, 1e-6) for one in confidences if one is not None]
    return round(geometric_mean(known), 4) if len(known) == len(confidences) else None
